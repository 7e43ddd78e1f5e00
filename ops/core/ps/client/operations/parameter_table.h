// What a worker knows of its parameters: where they are, and what it pulled last.
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

// Memory and whoever keeps it.
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
  std::vector<ShardSpec> shards;  // in order, without gaps

  size_t OffsetOf(const ShardSpec& shard) const { return shard.first * ByteSize(dtype); }
  size_t BytesOf(const ShardSpec& shard) const { return shard.count * ByteSize(dtype); }
};

struct ShardState {
  bool created = false;        // its server has had it
  uint32_t number = kNoShard;  // its server's name for it
  uint64_t version = 0;        // of what was pulled; 0: to be pulled again whatever it is
  bool whole = false;          // what was pulled is a value, not the rest of a pull that broke off
};

struct Parameter {
  ParameterSpec spec;
  bool excluded = false;
  Memory pulled;
  std::vector<ShardState> shards;

  // Whether what was pulled last has a value of this shard.
  bool HasWhole(int shard) const {
    return spec.elements == 0 || (pulled.data != nullptr && shards[shard].whole);
  }
  // Takes `value` for what was pulled last, though its servers may have another.
  void Know(Memory value);
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
  // Stays as it is; of no elements for an unknown id.
  const ParameterSpec& spec(int id) const;

  // Calls `look(parameter)` while nobody else looks at any parameter.
  template <typename Lookup>
  decltype(auto) With(int id, const Lookup& look) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return look(*parameters_[id]);
  }

  // All shards that a server has or had.
  std::vector<ShardRef> CreatedOn(int server) const;
  // The server is another than before: its versions mean nothing.
  void ForgetVersions(int server);
  // The number by which the server knows a shard; kNoShard: it does not have it any more.
  void Number(const ShardRef& shard, uint32_t number);
  // Fails if the server does not have it.
  Status NumberOf(const ShardRef& shard, uint32_t* number) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_PARAMETER_TABLE_H_
