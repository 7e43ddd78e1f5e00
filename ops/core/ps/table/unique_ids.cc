#include "core/ps/table/unique_ids.h"

#include <algorithm>

#include "core/ps/table/row_map.h"

namespace tfdist::ps {

int ServerOfId(int64_t id, int servers) {
  if (servers == 1) return 0;
  const uint64_t hash = MixId(static_cast<int64_t>(MixId(id)));
  return static_cast<int>((hash >> 32) * static_cast<uint64_t>(servers) >> 32);
}

void UniqueIds::Grow(size_t ids) {
  size_t buckets = 16;
  while (buckets < 2 * ids) buckets *= 2;
  if (buckets <= buckets_.size()) return;
  buckets_.assign(buckets, 0);
  for (size_t index = 0; index < ids_.size(); ++index) {
    size_t bucket = MixId(ids_[index]) & (buckets - 1);
    while (buckets_[bucket] != 0) bucket = (bucket + 1) & (buckets - 1);
    buckets_[bucket] = static_cast<uint32_t>(index + 1);
  }
}

void UniqueIds::Reserve(size_t count) {
  const auto reserve = [count](auto* list) {
    const size_t needed = list->size() + count;
    if (needed > list->capacity()) list->reserve(std::max(needed, 2 * list->capacity()));
  };
  reserve(&ids_);
  reserve(&indices_);
  Grow(ids_.size() + count);
}

void UniqueIds::Add(const int64_t* ids, size_t count) {
  Grow(ids_.size() + count);
  const size_t mask = buckets_.size() - 1;
  indices_.reserve(indices_.size() + count);
  for (size_t i = 0; i < count; ++i) {
    size_t bucket = MixId(ids[i]) & mask;
    while (buckets_[bucket] != 0 && ids_[buckets_[bucket] - 1] != ids[i]) {
      bucket = (bucket + 1) & mask;
    }
    if (buckets_[bucket] == 0) {
      ids_.push_back(ids[i]);
      buckets_[bucket] = static_cast<uint32_t>(ids_.size());
    }
    indices_.push_back(buckets_[bucket] - 1);
  }
}

IdsByServer::IdsByServer(const std::vector<int64_t>& ids, int servers) : parts(servers) {
  for (size_t index = 0; index < ids.size(); ++index) {
    Part& part = parts[ServerOfId(ids[index], servers)];
    part.ids.push_back(ids[index]);
    part.indices.push_back(static_cast<uint32_t>(index));
  }
}

}  // namespace tfdist::ps
