// Operations outside of the steps: create parameters and tables, bind optimizers, set values, add
// up tensors, leave.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_CONTROL_OPERATIONS_H_
#define TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_CONTROL_OPERATIONS_H_

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/block.h"
#include "core/ps/client/operations/operation.h"
#include "core/ps/client/operations/parameter_table.h"
#include "core/ps/client/operations/table_directory.h"
#include "core/ps/optimizers/optimizer.h"

namespace tfdist::ps {

// Creates the shards of a parameter that do not exist. Without a value, only asks which ones exist.
class CreateOperation : public PlainOperation {
 public:
  CreateOperation(ParameterTable* table, int parameter, const Memory* value, Done done);

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;

 private:
  ParameterTable* const table_;
  const ParameterSpec& spec_;
  const int parameter_;
  const bool has_value_;
  std::vector<std::vector<int>> shards_;  // by server
};

// Creates a table on all servers where it does not exist.
class CreateTableOperation : public PlainOperation {
 public:
  CreateTableOperation(TableDirectory* directory, int table, Done done);

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;

 private:
  TableDirectory* const directory_;
  const int table_;
};

// A parameter that servers update by pushed gradients, and its slots, which are split and placed
// like it.
struct BoundParameter {
  int parameter = 0;
  std::vector<int> slots;
  double weight_decay = 0;
};

struct BoundOptimizer {
  OptimizerConfig config;
  std::vector<BoundParameter> parameters;
};

// Fails if a slot is not split and placed like its parameter.
Status CheckBindings(const ParameterTable& table, const std::vector<BoundParameter>& parameters);
// Adds a server's part of a binding to the request. Fails if the server lacks one of the shards.
Status AddToRequest(const ParameterTable& table, const BoundParameter& binding, int server,
                    BindRequest* request);

class BindOperation : public PlainOperation {
 public:
  // The bindings have been checked.
  BindOperation(ParameterTable* table, BoundOptimizer optimizer, Done done);

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;

 private:
  ParameterTable* const table_;
  const BoundOptimizer optimizer_;
};

// A parameter and a value for it.
struct Value {
  int parameter = 0;
  Memory now;
};

// Replaces the values of parameters.
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

// How often a reduction has been executed since the last step was pulled.
struct ReduceCount {
  uint64_t steps = 0;  // the pulled steps when `executions` was last incremented
  uint64_t executions = 0;
};
using ReduceCounts = std::unordered_map<uint64_t, ReduceCount>;  // by key

// Adds up tensors over the workers, in place.
//
// All workers give an execution the same sequence number. It consists of the step's clock, which is
// the same in all workers of a synchronous job, and of the count of executions since.
class ReduceOperation : public PlainOperation {
 public:
  // `counts` belong to the client's thread.
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

// Tells the connected servers that the worker has finished its program.
class LeaveOperation : public PlainOperation {
 public:
  LeaveOperation(int servers, Done done);

  Status Meta(const Request&, const ServerView&, std::string*) override { return Status(); }
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_CONTROL_OPERATIONS_H_
