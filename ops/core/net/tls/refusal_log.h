// Tells the user, on stderr, which connections were refused because of TLS.
#ifndef TFDIST_OPS_CORE_NET_TLS_REFUSAL_LOG_H_
#define TFDIST_OPS_CORE_NET_TLS_REFUSAL_LOG_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/clock.h"

namespace tfdist {

// Writes a line for a reason at most once in kInterval, and then says how many it has left out: ten
// thousand refusals must not fill a log. Any thread.
class RefusalLog {
 public:
  using Write = std::function<void(const std::string& line)>;

  static constexpr auto kInterval = std::chrono::seconds(30);
  static constexpr size_t kMaxReasons = 16;  // others count as one, because peers influence them

  explicit RefusalLog(Write write) : write_(std::move(write)) {}

  void set_write(Write write);
  void Note(const std::string& peer, int port, const std::string& why, TimePoint now);

 private:
  struct Entry {
    TimePoint written;
    uint64_t left_out = 0;
  };

  std::mutex mutex_;
  Write write_;                           // guarded by mutex_
  std::map<std::string, Entry> entries_;  // guarded by mutex_; by reason
};

// The process's own, on stderr.
RefusalLog& ProcessRefusals();

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_TLS_REFUSAL_LOG_H_
