// A push: the gradients and changes of one step.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_PUSH_OPERATION_H_
#define TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_PUSH_OPERATION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/block.h"
#include "core/ps/client/operations/operation.h"
#include "core/ps/client/operations/parameter_table.h"
#include "core/ps/client/operations/table_directory.h"

namespace tfdist::ps {

// A gradient of a whole parameter, or of some of its rows.
struct Gradient {
  int parameter = 0;
  Memory values;
  // Only for a gradient of rows: their indices and elements per row. A gradient of 0 rows has a
  // width too; a width of 0 means a gradient of the whole parameter.
  std::vector<int64_t> rows;
  uint64_t width = 0;
};

// Gradients of a table's rows, float32, one per id; ids may repeat.
struct RowGradient {
  int table = 0;
  std::vector<int64_t> ids;
  Memory values;
  DType wire = DType::kFloat32;  // the dtype in which sums are sent
};

// Goes to all servers: each counts the step, also if the push has no values for it.
class PushOperation : public Operation {
 public:
  struct Outcome {
    bool dropped = false;  // by some server
    bool refused = false;  // see PushReply
    uint64_t bytes = 0;
  };
  using Done = std::function<void(const Status&, const Outcome&)>;

  // `pushes` counts the pushes of the client.
  PushOperation(ParameterTable* table, const TableDirectory* directory, BlockPool* pool,
                std::atomic<uint64_t>* pushes, Done done);

  // The caller's thread fills the push.

  Status AddGradient(const StepValues& step, const Gradient& gradient);
  // All gradients of one table. They are added up by id.
  Status AddTableRows(const StepValues& step, const std::vector<const RowGradient*>& gradients);
  // Adds the shards of `now` that differ from the last pulled value, which `now` replaces: as new
  // values if the worker is `alone`, else as differences to be added.
  Status AddChange(int parameter, const Memory& now, bool alone);
  // The records of data tasks that the push trains.
  void SetCommits(std::vector<TaskCommit> commits) { commits_ = std::move(commits); }
  // The push is of this unit of work of an elastic job.
  void SetUnit(const UnitOfWork& unit) { unit_ = unit; }
  // Makes it a push even without values: the servers count the step.
  void CountStep() { counts_step_ = true; }
  // Whether there is nothing to push. Gradients of 0 rows are a push: other workers wait for it.
  bool empty() const {
    return entries_ == 0 && steps_.empty() && commits_.empty() && !counts_step_;
  }

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;
  void OnEnd(const Status& status) override;

 private:
  struct Part {
    uint64_t incarnation = 0;  // of the server that the step was pulled from; 0: not sent yet
    uint64_t clock = 0;
    std::vector<ShardRef> shards;             // of kTableRows: the table, as `parameter`
    std::vector<PushRequest::Entry> entries;  // without the ids of their shards
  };

  Status AddRows(const Gradient& gradient, uint8_t step);
  BlockPtr GatherRows(const Gradient& gradient, const ParameterSpec& spec, const ShardSpec& shard,
                      uint64_t* count);
  Status StepIndex(const StepValues& step, uint8_t* index);
  void Add(const ShardRef& ref, const PushRequest::Entry& entry);
  void AddPayload(int server, const void* data, size_t bytes, std::shared_ptr<void> owner);

  ParameterTable* const table_;
  const TableDirectory* const directory_;
  BlockPool* const pool_;
  std::atomic<uint64_t>* const pushes_;
  Done done_;
  std::vector<StepValues> steps_;
  std::vector<Part> parts_;  // by server
  std::vector<TaskCommit> commits_;
  UnitOfWork unit_;
  size_t entries_ = 0;
  bool counts_step_ = false;
  uint64_t sequence_ = 0;  // 0: not sent yet
  Outcome outcome_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_PUSH_OPERATION_H_
