#include "core/math/one_bit.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace tfdist {

ColumnRange PartOfColumns(size_t rows, size_t columns, size_t part, size_t parts) {
  const size_t each = columns / parts, more = columns % parts;
  const size_t begin = part * each + std::min(part, more);
  return {rows, columns, begin, begin + each + (part < more ? 1 : 0)};
}

void EncodeOneBit(const ColumnRange& range, float* values, uint32_t* words) {
  const size_t width = range.width();
  // In double precision: a column may have millions of rows. [0]: negative values; [1]: others.
  std::vector<double> sums[2] = {std::vector<double>(width), std::vector<double>(width)};
  std::vector<size_t> negative(width);
  for (size_t i = 0; i < range.rows; ++i) {
    const float* const row = values + i * range.stride + range.begin;
    for (size_t j = 0; j < width; ++j) {
      const bool is_negative = row[j] < 0;
      sums[0][j] += is_negative ? row[j] : 0.0f;
      sums[1][j] += is_negative ? 0.0f : row[j];
      negative[j] += is_negative;
    }
  }
  std::vector<float> levels(2 * width);
  for (size_t j = 0; j < width; ++j) {
    const size_t counts[2] = {negative[j], range.rows - negative[j]};
    for (size_t side = 0; side < 2; ++side) {
      if (counts[side] == 0) continue;
      levels[side * width + j] = static_cast<float>(sums[side][j] / counts[side]);
    }
  }
  std::memcpy(words, levels.data(), 2 * width * sizeof(float));
  uint32_t* bits = words + 2 * width;
  uint32_t word = 0;
  size_t filled = 0;
  for (size_t i = 0; i < range.rows; ++i) {
    float* const row = values + i * range.stride + range.begin;
    for (size_t j = 0; j < width; ++j) {
      const bool is_negative = row[j] < 0;
      row[j] -= levels[is_negative ? j : width + j];
      word |= static_cast<uint32_t>(is_negative) << filled;
      if (++filled < 32) continue;
      *bits++ = word;
      word = 0;
      filled = 0;
    }
  }
  if (filled > 0) *bits = word;
}

void AddOneBit(const ColumnRange& range, const uint32_t* words, float* sums) {
  const size_t width = range.width();
  std::vector<float> levels(2 * width);
  std::memcpy(levels.data(), words, 2 * width * sizeof(float));
  const uint32_t* const bits = words + 2 * width;
  size_t position = 0;
  for (size_t i = 0; i < range.rows; ++i) {
    float* const row = sums + i * range.stride + range.begin;
    for (size_t j = 0; j < width; ++j, ++position) {
      const bool is_negative = bits[position / 32] >> (position % 32) & 1;
      row[j] += levels[is_negative ? j : width + j];
    }
  }
}

}  // namespace tfdist
