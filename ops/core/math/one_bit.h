// Matrices with one bit per value and two values per column.
//
// A bit says whether a value is negative. Each column has two levels: the mean of its negative
// values, and the mean of the others, which together minimise the squared error. One column:
//
//     values       3  -1   1  -5   2      levels -3 and 2
//     bits         0   1   0   1   0
//     restored     2  -3   2  -3   2
//     rest         1   2  -1  -2   0      adds up to zero in each column
//
// Seide, Fu, Droppo, Li and Yu, "1-bit stochastic gradient descent and its application to
// data-parallel distributed training of speech DNNs", 2014.
//
// Some columns, from `begin` to `end`, of a matrix are encoded as 32-bit words: the lower levels,
// the upper levels, then the bits, row by row without padding between rows.
#ifndef TFDIST_OPS_CORE_MATH_ONE_BIT_H_
#define TFDIST_OPS_CORE_MATH_ONE_BIT_H_

#include <cstddef>
#include <cstdint>

namespace tfdist {

// Columns `begin` to `end` of a matrix of `rows` x `stride`, whose rows are contiguous.
struct ColumnRange {
  size_t rows = 0;
  size_t stride = 0;
  size_t begin = 0;
  size_t end = 0;

  size_t width() const { return end - begin; }
  // Of the encoding.
  size_t words() const { return 2 * width() + (rows * width() + 31) / 32; }
};

// The columns of part `part` of `parts`. Parts are contiguous; if the columns do not divide evenly,
// the first parts have one more than the others.
ColumnRange PartOfColumns(size_t rows, size_t columns, size_t part, size_t parts);

// Encodes columns of `values` to range.words() words, and leaves the rest: the values minus the
// decoded values that AddOneBit adds. NaN and infinity make a level NaN or infinite: they are
// visible on every rank.
void EncodeOneBit(const ColumnRange& range, float* values, uint32_t* words);

// Adds the encoded values to `sums`.
void AddOneBit(const ColumnRange& range, const uint32_t* words, float* sums);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_MATH_ONE_BIT_H_
