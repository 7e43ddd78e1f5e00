// The outcome of an operation: a code, which is one of TensorFlow's, and a message.
#ifndef TFDIST_OPS_CORE_BASE_STATUS_H_
#define TFDIST_OPS_CORE_BASE_STATUS_H_

#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tfdist {

// The numbers equal gRPC's and TensorFlow's canonical codes: a cast converts them.
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

// Appends a value as a stream would print it.
template <typename T>
void AppendTo(std::string* text, const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    text->append(std::string_view(value));
  } else if constexpr (std::is_integral_v<T> && sizeof(T) > 1) {  // not a character or a bool
    text->append(std::to_string(value));
  } else {
    std::ostringstream out;
    out << value;
    text->append(out.str());
  }
}

// Concatenates its arguments as a stream would print them. Texts and wide integers take no stream,
// which is ten times as slow: every collective and request has a description.
template <typename... Args>
std::string StrCat(const Args&... args) {
  std::string text;
  (AppendTo(&text, args), ...);
  return text;
}

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_STATUS_H_
