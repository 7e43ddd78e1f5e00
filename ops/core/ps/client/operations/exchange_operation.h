// An exchange of elastic averaging: parameters on the servers and a worker's values for them
// attract each other.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_EXCHANGE_OPERATION_H_
#define TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_EXCHANGE_OPERATION_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/ps/client/operations/control_operations.h"
#include "core/ps/client/operations/operation.h"
#include "core/ps/client/operations/parameter_table.h"

namespace tfdist::ps {

// With x the worker's value of a parameter and c the servers' value: c becomes c + alpha (x - c).
// alpha (x - c) is stored in memory of the caller's, which subtracts it from x.
class ExchangeOperation : public PlainOperation {
 public:
  // `moves`: memory of the parameters' sizes, for alpha (x - c). `exchanges` counts the exchanges
  // of the client, in its thread.
  ExchangeOperation(ParameterTable* table, const std::vector<Value>& values,
                    const std::vector<Memory>& moves, double alpha, uint64_t* exchanges, Done done);

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;

 private:
  struct Part {
    std::vector<ShardRef> shards;
    std::vector<iovec> moves;
    uint64_t bytes = 0;
  };

  ParameterTable* const table_;
  const double alpha_;
  uint64_t* const exchanges_;
  std::vector<Memory> owners_;
  std::vector<Part> parts_;  // by server
  uint64_t sequence_ = 0;    // 0: not sent yet
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_EXCHANGE_OPERATION_H_
