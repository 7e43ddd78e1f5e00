// What comes before the first step and after the last: create, bind, leave.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_SETUP_OPERATIONS_H_
#define TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_SETUP_OPERATIONS_H_

#include <string>
#include <string_view>
#include <vector>

#include "core/ps/client/operations/operation.h"
#include "core/ps/client/operations/parameter_table.h"
#include "core/ps/optimizers/optimizer.h"

namespace tfdist::ps {

// Creates those shards of a parameter that do not exist; without a value, only asks which do.
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

// A parameter that servers update by pushed gradients, and its slots, which are placed like it.
struct BoundParameter {
  int parameter = 0;
  std::vector<int> slots;
  double weight_decay = 0;
};

// Whether the slots are placed like their parameters.
Status CheckBindings(const ParameterTable& table, const std::vector<BoundParameter>& bindings);
// Adds what a server is told of a binding. Fails if it does not have all of the shards.
Status AddToRequest(const ParameterTable& table, const BoundParameter& binding, int server,
                    BindRequest* request);

class BindOperation : public PlainOperation {
 public:
  // The bindings have been checked.
  BindOperation(ParameterTable* table, const OptimizerConfig& config,
                std::vector<BoundParameter> bindings, Done done);

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;

 private:
  ParameterTable* const table_;
  const OptimizerConfig config_;
  const std::vector<BoundParameter> bindings_;
};

// Goes to the servers that are connected.
class LeaveOperation : public PlainOperation {
 public:
  LeaveOperation(int servers, Done done);

  Status Meta(const Request&, const ServerView&, std::string*) override { return Status(); }
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_SETUP_OPERATIONS_H_
