// A pull: brings parameters up to date.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_PULL_OPERATION_H_
#define TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_PULL_OPERATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/ps/client/operations/operation.h"
#include "core/ps/client/operations/parameter_table.h"

namespace tfdist::ps {

// Values are received directly into memory that the caller allocates for a parameter, when the
// first server sends a new value of one of its shards:
//
//   - New memory replaces the last pulled value when all servers have answered. The shards that
//   have
//     not changed are then copied from the old value.
//   - If the memory holds the last pulled value, unchanged shards need no copy. A broken connection
//     may then tear a shard, which the table records at once.
class PullOperation : public Operation {
 public:
  using Allocate = std::function<Memory(int parameter)>;
  using Done = std::function<void(const Status&, uint64_t bytes)>;

  // A pull that begins a step goes to all `servers`.
  PullOperation(ParameterTable* table, const std::vector<int>& parameters, bool begins_step,
                int servers, Allocate allocate, Done done);

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;
  Status OnPayload(const Request& request) override;
  void OnBroken(const Request& request, uint64_t received, uint64_t touched) override;
  void OnEnd(const Status& status) override;

 private:
  struct Entry {
    ShardRef ref;
    const ParameterSpec* parameter = nullptr;
    const ShardSpec* shard = nullptr;
    uint64_t known = 0;     // the version in the request
    uint64_t coming = 0;    // the version that is being received; 0: none
    uint64_t received = 0;  // the version that has been received; 0: none

    size_t offset() const { return parameter->OffsetOf(*shard); }
    size_t bytes() const { return parameter->BytesOf(*shard); }
  };
  struct Part {
    uint64_t incarnation = 0;  // of the server that sent the received versions
    std::vector<Entry> entries;
  };
  struct Destination {
    Memory memory, before;
    bool in_place = false;
    std::vector<const Entry*> entries;
  };

  const Destination* FindOrAllocate(const Entry& entry);
  void MarkReceived(const Entry& entry, uint64_t version, bool whole);
  Status Complete(int parameter, Destination* destination);

  ParameterTable* const table_;
  const bool begins_step_;
  Allocate allocate_;
  Done done_;
  std::vector<Part> parts_;  // by server
  std::unordered_map<int, Destination> destinations_;
  Status failure_;
  uint64_t bytes_ = 0;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_PULL_OPERATION_H_
