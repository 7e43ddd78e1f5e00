#include "core/collectives/stall_check.h"

#include <algorithm>
#include <utility>

namespace tfdist {
namespace {

// The time in which peers must reply.
constexpr auto kReplyTimeout = std::chrono::milliseconds(1000);

void Append(std::string* list, const char* separator, const std::string& item) {
  if (!list->empty()) *list += separator;
  *list += item;
}

}  // namespace

StallCheck::StallCheck(const CollectiveId& id, int size, std::vector<int> queried)
    : id_(id), ends_(Clock::now() + kReplyTimeout), queried_(std::move(queried)), replies_(size) {}

bool StallCheck::Complete() const {
  return std::all_of(queried_.begin(), queried_.end(),
                     [this](int peer) { return replies_[peer].has_value(); });
}

std::string StallCheck::FindStraggler(int waiting_for, const PeerName& name) const {
  std::string silent, absent;
  for (const int peer : queried_) {
    const std::optional<Reply>& reply = replies_[peer];
    if (!reply) {
      Append(&silent, ", ", name(peer));
    } else if (!reply->started) {
      Append(&absent, "; ",
             StrCat(name(peer), ", which has not started it and ",
                    reply->doing.empty() ? "has no collective pending"
                                         : StrCat("waits in ", reply->doing)));
    }
  }
  if (!silent.empty()) return silent + ", which does not respond";
  if (!absent.empty()) return absent;
  return name(waiting_for) + ", which has started it too";
}

std::string StallCheck::FindMismatch(double seconds,
                                     const std::function<bool(const CollectiveId&)>& has_started,
                                     const PeerName& name) const {
  for (const int peer : queried_) {
    const std::optional<Reply>& reply = replies_[peer];
    if (!reply || reply->started || reply->doing.empty()) continue;
    if (reply->waited_seconds < seconds || has_started({reply->key, reply->sequence})) continue;
    return StrCat(name(peer), " waits in ", reply->doing);
  }
  return "";
}

}  // namespace tfdist
