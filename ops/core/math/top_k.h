// The k values of largest magnitude in a list.
//
// The bits of a float without its sign, read as an unsigned integer, order floats by magnitude. The
// k-th largest magnitude is found digit by digit: the values with each digit are counted, as in a
// radix sort that follows only the digit of the k-th value. With decimal digits instead of 16-bit
// ones, and k = 4:
//
//     magnitudes      52 17 58 91 55 40 13
//     first digits    9: one, 5: three, 4: one, 1: two  ->  the 4th largest begins with 5,
//                                                           and is the 3rd of those
//     second digits   8: one, 5: one, 2: one            ->  it ends with 2
//     taken           52, 58, 91, 55: all from 52 on
//
// Three passes over the list for any k. Among equal magnitudes the first ones are taken, so the
// choice is deterministic. NaN counts as larger than infinity: it is sent and becomes visible,
// instead of staying in the remainder.
#ifndef TFDIST_OPS_CORE_MATH_TOP_K_H_
#define TFDIST_OPS_CORE_MATH_TOP_K_H_

#include <cstddef>
#include <cstdint>

namespace tfdist {

// Moves the k values of largest magnitude from `values` to `taken` and leaves zeros behind.
// taken[j] was at positions[j]; positions are ascending. 1 <= k <= count < 2^31.
void TopK(float* values, size_t count, size_t k, int32_t* positions, float* taken);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_MATH_TOP_K_H_
