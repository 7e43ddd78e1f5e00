// A worker's parameters: their shards on the servers, and their last pulled values.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_PARAMETER_TABLE_H_
#define TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_PARAMETER_TABLE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/math/dtype.h"
#include "core/ps/protocol/message.h"

namespace tfdist::ps {

// Memory and its owner.
struct Memory {
  char* data = nullptr;
  std::shared_ptr<void> owner;
};

struct ShardSpec {
  int server = 0;
  std::string name;
  uint64_t first = 0;  // in elements of the parameter
  uint64_t count = 0;
};

struct ParameterSpec {
  std::string name;
  DType dtype = DType::kFloat32;
  uint64_t elements = 0;
  std::vector<ShardSpec> shards;  // in order, contiguous

  size_t OffsetOf(const ShardSpec& shard) const { return shard.first * ByteSize(dtype); }
  size_t BytesOf(const ShardSpec& shard) const { return shard.count * ByteSize(dtype); }
};

struct ShardState {
  bool created = false;    // on its server, at some time
  uint32_t id = kNoShard;  // of its server
  uint64_t version = 0;    // of the pulled value; 0: the next pull fetches it in any case
  bool whole = false;      // the pulled value is not torn by a broken pull
};

struct Parameter {
  ParameterSpec spec;
  bool excluded = false;
  Memory pulled;  // the last pulled value
  std::vector<ShardState> shards;

  // Whether the last pulled value has this shard.
  bool HasWhole(int shard) const {
    return spec.elements == 0 || (pulled.data != nullptr && shards[shard].whole);
  }
  // Replaces the last pulled value. The next pull fetches the servers' value.
  void SetPulled(Memory value);
};

// A shard of a parameter.
struct ShardRef {
  int parameter = 0;
  int shard = 0;
};

class ParameterTable {
 public:
  Status Add(ParameterSpec spec, int servers, int* id);
  bool Has(int id) const;
  // Does not change; without elements for an unknown id.
  const ParameterSpec& spec(int id) const;

  // Calls `call(parameter)` under the lock.
  template <typename Call>
  decltype(auto) With(int id, const Call& call) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return call(*parameters_[id]);
  }

  // The shards that were created on a server.
  std::vector<ShardRef> CreatedOn(int server) const;
  // The server has restarted: its versions are void.
  void ForgetVersions(int server);
  // The server's id of a shard; kNoShard: the server has lost it.
  void SetShardId(const ShardRef& shard, uint32_t id);
  // Fails if the server does not have the shard.
  Status FindShardId(const ShardRef& shard, uint32_t* id) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_PARAMETER_TABLE_H_
