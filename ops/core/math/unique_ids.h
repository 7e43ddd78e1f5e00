// The distinct ids of lists that contain some ids several times.
#ifndef TFDIST_OPS_CORE_MATH_UNIQUE_IDS_H_
#define TFDIST_OPS_CORE_MATH_UNIQUE_IDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfdist {

class UniqueIds {
 public:
  // Allocates memory for `count` more ids.
  void Reserve(size_t count);
  // May be called several times: indices continue after the ids added before.
  void Add(const int64_t* ids, size_t count);

  // The distinct ids, in the order of their first occurrence.
  const std::vector<int64_t>& ids() const { return ids_; }
  // For each added id, its index in `ids()`.
  const std::vector<uint32_t>& indices() const { return indices_; }

 private:
  void Grow(size_t ids);

  std::vector<int64_t> ids_;
  std::vector<uint32_t> indices_;
  std::vector<uint32_t> buckets_;  // index + 1; 0: empty
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_MATH_UNIQUE_IDS_H_
