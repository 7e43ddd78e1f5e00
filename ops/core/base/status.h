// The outcome of an operation: a code, which is one of TensorFlow's, and a message.
#ifndef TFDIST_OPS_CORE_BASE_STATUS_H_
#define TFDIST_OPS_CORE_BASE_STATUS_H_

#include <sstream>
#include <string>
#include <utility>

namespace tfdist {

// The numbers are those of gRPC's and TensorFlow's canonical codes: a cast converts them.
enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kInternal = 13,
  kUnavailable = 14,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status InvalidArgument(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

// Concatenates its arguments as a stream would print them.
template <typename... Args>
std::string StrCat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_STATUS_H_
