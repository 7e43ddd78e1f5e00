// Decides when the gradients of a unit of work of an elastic job are applied. Two phases ensure
// that a unit is applied on all servers, once, or has left no trace, whenever its members die.
// Bookkeeping only: no values, no network.
//
//     member 0            server 0          server 1            member 1
//        | PUSH ------------->|---------------->|<---------------- PUSH |  collected
//        |==================== all-reduce: all pushes are collected ====|  the gate
//        | COMMIT ----------->|<----------------|--------------- COMMIT |
//        |                  applies           applies                   |  once all have committed
//
// A member passes the gate only when all members' pushes are collected on all servers. So:
//
//   - If all members have committed, all have done the unit: the survivors will not repeat it.
//   - If members die before, the survivors form the next generation, and find out whether one of
//     them has done the unit. If so, all receive that member's results, and RESOLVE makes the
//     servers apply the collected pushes. Otherwise RESOLVE makes the servers discard them, and the
//     members repeat the unit. A server that has applied them already has nothing to do: then all
//     members had done the unit.
//
// Requests from another generation than the server's have no effect. Each member sends RESOLVE, and
// waits for the answers, before its first unit in the new generation.
#ifndef TFDIST_OPS_CORE_PS_SERVER_ELASTIC_SCHEDULE_H_
#define TFDIST_OPS_CORE_PS_SERVER_ELASTIC_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "core/ps/protocol/message.h"

namespace tfdist::ps {

class ElasticSchedule {
 public:
  // `workers`: that may be members. None is before the first Resolve.
  explicit ElasticSchedule(int workers) : workers_(workers) {}

  enum class Resolution {
    kRefused,  // from a former generation
    kNothing,  // there is no open unit, or the generation is known
    kApply,    // the open unit, which this closes
    kDrop,     // the same
  };
  Resolution Resolve(const ResolveRequest& resolve);

  // Returns whether the push counts. It opens the unit if it is the unit's first.
  bool Push(int worker, const UnitOfWork& unit);
  // The open unit, if the push belongs to a later one. It cannot, unless this server was started
  // again meanwhile: then it has lost some pushes and commits of the open unit.
  std::optional<uint64_t> Supersedes(int worker, const UnitOfWork& unit) const;
  // Returns false if a push of this unit was lost, because this server was started again. A
  // repeated commit, or one of a former generation, has no effect.
  bool Commit(int worker, const UnitOfWork& unit);
  // Whether the worker's unit is open.
  bool IsOpen(int worker, const UnitOfWork& unit) const {
    return IsOfMember(worker, unit) && open_ == unit.number;
  }
  // Whether all members have committed the open unit.
  bool StepIsComplete() const;
  void CloseStep();

  std::optional<uint64_t> open_unit() const { return open_; }
  uint64_t generation() const { return generation_; }

 private:
  struct Worker {
    bool is_member = false;
    bool has_committed = false;  // the open unit
  };

  bool IsOfMember(int worker, const UnitOfWork& unit) const;
  void EndUnit();

  std::vector<Worker> workers_;
  uint64_t job_ = 0, generation_ = 0;  // 0: none yet
  std::vector<uint64_t> former_jobs_;
  std::optional<uint64_t> open_, closed_;  // the open unit, and the last closed one
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_ELASTIC_SCHEDULE_H_
