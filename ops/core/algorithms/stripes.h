// Segments of a ring that do not depend on the buckets in which a list of tensors is reduced.
//
// In a ring the order in which the ranks' values of an element are added depends on the segment
// that holds the element. Even segments of a bucket would make that order, and so the last bits of
// a sum, depend on where the bucket begins and ends. Therefore the whole list is cut into stripes
// of kStripeElements elements, and stripe i belongs to segment i mod N of the bucket that carries
// it. With 3 ranks:
//
//     list       | 0 | 1 | 2 | 3 | 4 | 5 | 6 |     stripes
//     bucket           [ 1, 2, 3, 4 )              elements of stripes 1 to 4
//     segments   { 3 }  { 1, 4 }  { 2 }
//
// Two values have the same sum in either order, so that a ring of two ranks needs no stripes.
#ifndef TFDIST_OPS_CORE_ALGORITHMS_STRIPES_H_
#define TFDIST_OPS_CORE_ALGORITHMS_STRIPES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfdist {

// 16 KB of float32: a bucket of 1 MB has two stripes for each of 32 ranks.
inline constexpr uint64_t kStripeElements = 4096;

// A range of bytes of a bucket.
struct Stripe {
  size_t begin = 0, end = 0;
};

// The bucket's stripes, in the order of their segments. The bucket has `count` elements of `width`
// bytes, the first of which is element `begin` of the list.
std::vector<Stripe> Stripes(uint64_t begin, size_t count, size_t width, int segments);

// Segment i is [bounds[i], bounds[i + 1]), in bytes, of the bucket in this order.
std::vector<size_t> StripedBounds(uint64_t begin, size_t count, size_t width, int segments);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_ALGORITHMS_STRIPES_H_
