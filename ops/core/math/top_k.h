// The k values of largest magnitude in a list.
//
// Written as an unsigned integer, a float without its sign is larger where its magnitude is. So the
// k-th largest magnitude is found digit by digit, by counting, as in a radix sort that sorts only
// the digit it needs. With digits of one decimal place instead of 16 bits, and k = 4:
//
//     magnitudes      52 17 58 91 55 40 13
//     first digits    9: one, 5: three, 4: one, 1: two  ->  the 4th largest begins with 5,
//                                                           and is the 3rd of those
//     their second    8: one, 5: one, 2: one            ->  it ends with 2
//     taken           52, 58, 91, 55: all from 52 on
//
// Three passes over the list, whatever k is. Of equal magnitudes the first ones are taken, so that
// the choice is the same everywhere. What is not a number counts as larger than infinity: it is
// sent on and seen, not kept.
#ifndef TFDIST_OPS_CORE_MATH_TOP_K_H_
#define TFDIST_OPS_CORE_MATH_TOP_K_H_

#include <cstddef>
#include <cstdint>

namespace tfdist {

// Moves the k values of largest magnitude out of `values`, which keeps zeros in their places:
// positions[j], ascending, is where taken[j] was. 1 <= k <= count < 2^31.
void TopK(float* values, size_t count, size_t k, int32_t* positions, float* taken);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_MATH_TOP_K_H_
