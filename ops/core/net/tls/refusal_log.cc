#include "core/net/tls/refusal_log.h"

#include <unistd.h>

#include <utility>

#include "core/base/status.h"

namespace tfdist {

void RefusalLog::Note(const std::string& peer, int port, const std::string& why, TimePoint now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool full = entries_.size() >= kMaxReasons && entries_.count(why) == 0;
  const auto [found, is_new] = entries_.try_emplace(full ? "" : why);
  Entry& entry = found->second;
  if (!is_new && now - entry.written < kInterval) {
    ++entry.left_out;
    return;
  }
  std::string line = StrCat("tfdist: refused ", peer, " at data port ", port, ": ", why);
  if (entry.left_out > 0) line += StrCat(" (", entry.left_out, " more since the last such line)");
  entry = {now, 0};
  write_(line + "\n");
}

void RefusalLog::set_write(Write write) {
  const std::lock_guard<std::mutex> lock(mutex_);
  write_ = std::move(write);
}

RefusalLog& ProcessRefusals() {
  // Never destroyed, because threads may accept while the process exits.
  static auto* const log = new RefusalLog([](const std::string& line) {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
  });
  return *log;
}

}  // namespace tfdist
