// A push: the gradients and changes of one step.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_PUSH_OPERATION_H_
#define TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_PUSH_OPERATION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
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
  // Of rows only: their numbers and how many elements each has. A gradient of no rows has a width
  // too; a width of 0 means a whole gradient.
  std::vector<int64_t> rows;
  uint64_t width = 0;
};

// Gradients of a table's rows, float32, one for each id; ids may repeat.
struct RowGradient {
  int table = 0;
  std::vector<int64_t> ids;
  Memory values;
  DType wire = DType::kFloat32;  // what sums travel as
};

// If there is anything for one server, all have to hear of the step.
class PushOperation : public Operation {
 public:
  struct Outcome {
    bool dropped = false;  // by some server
    uint64_t bytes = 0;
  };
  using Done = std::function<void(const Status&, const Outcome&)>;

  // `pushes` counts the pushes of this process: the caller's one and only counter.
  PushOperation(ParameterTable* table, const TableDirectory* directory, BlockPool* pool,
                std::atomic<uint64_t>* pushes, Done done);

  // The caller's thread adds what there is.

  Status AddGradient(const StepValues& step, const Gradient& gradient);
  // All of one table, added up by id.
  Status AddTableRows(const StepValues& step, const std::vector<const RowGradient*>& gradients);
  // Adds what differs from what was pulled last, which `now` becomes: as values to put in place if
  // the worker is `alone`, else as values to be added.
  Status AddChange(int parameter, const Memory& now, bool alone);
  // Whether there was no step. One whose gradients have no rows is one: other workers wait for it.
  bool empty() const { return entries_ == 0 && steps_.empty(); }

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;
  void OnEnd(const Status& status) override;

 private:
  struct Part {
    uint64_t incarnation = 0;  // of the server that the step was pulled from; 0: not sent yet
    uint64_t clock = 0;
    std::vector<ShardRef> shards;             // of kTableRows: the table, as `parameter`
    std::vector<PushRequest::Entry> entries;  // without their shards' numbers
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
  size_t entries_ = 0;
  uint64_t sequence_ = 0;  // 0: not sent yet
  Outcome outcome_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_PUSH_OPERATION_H_
