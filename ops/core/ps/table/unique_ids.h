// Ids that occur several times, each once.
#ifndef TFDIST_OPS_CORE_PS_TABLE_UNIQUE_IDS_H_
#define TFDIST_OPS_CORE_PS_TABLE_UNIQUE_IDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfdist::ps {

// Which of the servers holds the rows of an id. Not by the bits that the servers' own tables use.
int ServerOfId(int64_t id, int servers);

class UniqueIds {
 public:
  // Allocates for `count` more ids.
  void Reserve(size_t count);
  // Counts on: places go on from those of ids that were added before.
  void Add(const int64_t* ids, size_t count);

  // In the order in which they occurred first.
  const std::vector<int64_t>& ids() const { return ids_; }
  // Of each id that was added, its place in `ids`.
  const std::vector<uint32_t>& places() const { return places_; }

 private:
  void Grow(size_t ids);

  std::vector<int64_t> ids_;
  std::vector<uint32_t> places_;
  std::vector<uint32_t> buckets_;  // a place and one; 0: none
};

// The same ids by server.
struct IdsByServer {
  IdsByServer(const std::vector<int64_t>& ids, int servers);

  struct Part {
    std::vector<int64_t> ids;
    std::vector<uint32_t> places;  // in the list of all
  };
  std::vector<Part> parts;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_UNIQUE_IDS_H_
