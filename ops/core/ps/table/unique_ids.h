// Lists of ids without their duplicates, and by server.
#ifndef TFDIST_OPS_CORE_PS_TABLE_UNIQUE_IDS_H_
#define TFDIST_OPS_CORE_PS_TABLE_UNIQUE_IDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfdist::ps {

// The server that holds the row of an id. Its hash is independent of that of the tables.
int ServerOfId(int64_t id, int servers);

class UniqueIds {
 public:
  // Allocates for `count` more ids.
  void Reserve(size_t count);
  // Appends ids; those that were added before keep their indices.
  void Add(const int64_t* ids, size_t count);

  // The distinct ids, in the order of their first occurrence.
  const std::vector<int64_t>& ids() const { return ids_; }
  // For each id that was added, its index in `ids`.
  const std::vector<uint32_t>& indices() const { return indices_; }

 private:
  void Grow(size_t ids);

  std::vector<int64_t> ids_;
  std::vector<uint32_t> indices_;
  std::vector<uint32_t> buckets_;  // an index plus one; 0: empty
};

// A list of ids, by server.
struct IdsByServer {
  IdsByServer(const std::vector<int64_t>& ids, int servers);

  struct Part {
    std::vector<int64_t> ids;
    std::vector<uint32_t> indices;  // in the whole list
  };
  std::vector<Part> parts;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_UNIQUE_IDS_H_
