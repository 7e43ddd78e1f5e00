// The questions asked of all peers when a collective has waited for long: who is at fault?
#ifndef TFDIST_OPS_CORE_COLLECTIVES_STALL_CHECK_H_
#define TFDIST_OPS_CORE_COLLECTIVES_STALL_CHECK_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/collectives/collective.h"
#include "core/collectives/frames.h"
#include "core/net/socket.h"

namespace tfdist {

class StallCheck {
 public:
  // `asked` are the peers that a question went to.
  StallCheck(const CollectiveId& id, int size, std::vector<int> asked);

  const CollectiveId& id() const { return id_; }
  TimePoint ends() const { return ends_; }
  void Answer(int peer, Reply reply) { replies_[peer] = std::move(reply); }
  bool Complete() const;

  using PeerName = std::function<std::string(int)>;

  // "rank 2 (host:port), which does not respond": whoever gives no answer, else whoever has not
  // started the collective, else the peer that it waits for.
  std::string FindStraggler(int waiting_for, const PeerName& name) const;

  // A peer that for `seconds` or longer has waited in a collective that has not started here, while
  // it has not started ours; described, or empty. Then neither will ever go on.
  std::string FindMismatch(double seconds,
                           const std::function<bool(const CollectiveId&)>& has_started,
                           const PeerName& name) const;

 private:
  CollectiveId id_;
  TimePoint ends_;
  std::vector<int> asked_;
  std::vector<std::optional<Reply>> replies_;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_STALL_CHECK_H_
