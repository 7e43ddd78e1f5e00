// Finds the cause when a collective has waited for a long time: asks all peers for their state.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_STALL_CHECK_H_
#define TFDIST_OPS_CORE_COLLECTIVES_STALL_CHECK_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/collectives/collective.h"
#include "core/collectives/frames.h"

namespace tfdist {

class StallCheck {
 public:
  // `queried`: the peers to which a QUERY was sent.
  StallCheck(const CollectiveId& id, int size, std::vector<int> queried);

  const CollectiveId& id() const { return id_; }
  TimePoint ends() const { return ends_; }
  void Answer(int peer, Reply reply) { replies_[peer] = std::move(reply); }
  bool Complete() const;

  using PeerName = std::function<std::string(int)>;

  // "rank 2 (host:port), which does not respond": the peers without a reply; if none, the peers
  // that have not started the collective; if none, `waiting_for`.
  std::string FindStraggler(int waiting_for, const PeerName& name) const;

  // A peer that has not started this collective and has waited at least `seconds` in another that
  // has not started here: neither can complete. Returns its description, or empty.
  std::string FindMismatch(double seconds,
                           const std::function<bool(const CollectiveId&)>& has_started,
                           const PeerName& name) const;

 private:
  CollectiveId id_;
  TimePoint ends_;
  std::vector<int> queried_;
  std::vector<std::optional<Reply>> replies_;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_STALL_CHECK_H_
