// How a communicator joins, and stands in for what its peers start then. See join.h.
#include <algorithm>
#include <string>
#include <utility>

#include "core/collectives/communicator.h"
#include "core/collectives/join.h"
#include "core/collectives/selector.h"

namespace tfdist {

void Communicator::Join(CollectiveOptions options, int* last_rank) {
  {
    // A rank that joins later has numbered more collectives by then: this is none of them.
    std::lock_guard<std::mutex> lock(mutex_);
    uint64_t& next = sequences_[options.id.key];
    if (next == options.id.sequence + 1) --next;
  }
  const CollectiveId named = options.id;
  options.id = {kJoinKey, joins_};
  options.signature.joins = joins_;
  const auto begin = [this, named] {
    join_ = Find({kJoinKey, joins_});
    join_named_ = named;
    return begun_;
  };
  const auto caught_up = [this](uint64_t most) { return begun_ >= most && pending_.size() == 1; };
  Submit(::tfdist::Join::Make(std::move(options), rank_, size_, begin, caught_up, last_rank));
}

// What remains of the start of a join: stands in for what peers opened before.
void Communicator::StandInForEarly() {
  if (history_.TakeCancelled(join_named_)) return GiveUp(*join_);
  for (const CollectiveId& id : early_.Opened()) StandIn(id);
}

// Begins a collective that peers have opened and this rank, having joined, has not started.
void Communicator::StandIn(const CollectiveId& id) {
  const UnexpectedMessages::Open* const open = early_.FirstOpen(id);
  if (join_ == nullptr || open == nullptr || open->signature.joins != joins_) return;
  const Signature signature = open->signature;
  std::string why = StandInRefused(signature, rank_, size_);
  std::unique_ptr<Collective> collective;
  if (why.empty()) collective = MakeStandIn(id, signature, rank_, hosts_);
  if (why.empty() && collective == nullptr) why = "has no memory for it";
  if (!why.empty()) {
    const Status status(StatusCode::kInvalidArgument,
                        StrCat(Who(), ": ", Describe(signature), " was started by rank ",
                               open->peer, ", but rank ", rank_, " has joined and ", why));
    return Fail(status, status);
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    uint64_t& next = sequences_[id.key];
    next = std::max(next, id.sequence + 1);
  }
  Begin(std::move(collective));
}

}  // namespace tfdist
