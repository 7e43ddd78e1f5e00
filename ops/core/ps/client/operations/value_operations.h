// Values outside of the steps: set, reduce.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_VALUE_OPERATIONS_H_
#define TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_VALUE_OPERATIONS_H_

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/block.h"
#include "core/ps/client/operations/operation.h"
#include "core/ps/client/operations/parameter_table.h"

namespace tfdist::ps {

struct Value {
  int parameter = 0;
  Memory now;
};

// Puts values in place.
class SetOperation : public PlainOperation {
 public:
  // The parameters exist, and have values.
  SetOperation(ParameterTable* table, const std::vector<Value>& values, Done done);

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;

 private:
  ParameterTable* const table_;
  std::vector<std::vector<ShardRef>> shards_;  // by server
};

struct Tensor {
  DType dtype = DType::kFloat32;
  uint64_t elements = 0;
  Memory values;

  size_t bytes() const { return elements * ByteSize(dtype); }
};

// How often each reduction has been executed since the last step was pulled.
struct ReduceCount {
  uint64_t steps = 0;  // pulled when it was counted
  uint64_t executions = 0;
};
using ReduceCounts = std::unordered_map<uint64_t, ReduceCount>;

// Adds up tensors over the workers, in place.
//
// All workers give an execution the same number: from the step's clock, on which a synchronous job
// agrees, and how often the reduction was executed since.
class ReduceOperation : public PlainOperation {
 public:
  // `counts` are the client's thread's.
  ReduceOperation(uint64_t key, std::vector<Tensor> tensors, int server, BlockPool* pool,
                  ReduceCounts* counts, Done done);

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;
  Status OnPayload(const Request& request) override;

 private:
  const uint64_t key_;
  const std::vector<Tensor> tensors_;
  BlockPool* const pool_;
  ReduceCounts* const counts_;
  uint64_t bytes_ = 0;
  uint64_t execution_ = 0;  // counted from 1; 0: not sent yet
  BlockPtr sum_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_VALUE_OPERATIONS_H_
