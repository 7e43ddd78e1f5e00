#include "core/math/low_rank.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace tfdist {
namespace {

// A column is independent if more than this part of its length remains after the projection.
constexpr double kIndependent = 1e-5;

double Dot(const float* a, const float* b, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

void SubtractProjection(const float* direction, float* column, size_t count) {
  const auto along = static_cast<float>(Dot(direction, column, count));
  for (size_t i = 0; i < count; ++i) column[i] -= along * direction[i];
}

// Fills `column` with an arbitrary sequence of +1 and -1 (the finalizer of MurmurHash3).
void FillArbitrary(float* column, size_t count, uint32_t seed) {
  for (size_t i = 0; i < count; ++i) {
    auto hash = static_cast<uint32_t>(i) * 0x9e3779b9u + seed;
    hash = (hash ^ hash >> 16) * 0x85ebca6bu;
    hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
    column[i] = (hash ^ hash >> 16) & 1 ? 1.0f : -1.0f;
  }
}

// Makes column `c` of `columns` orthonormal to the earlier ones; false if it depends on them.
bool OrthonormalizeColumn(float* columns, size_t rows, size_t c) {
  float* const column = columns + c * rows;
  const double before = std::sqrt(Dot(column, column, rows));
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t d = 0; d < c; ++d) SubtractProjection(columns + d * rows, column, rows);
  }
  const double length = std::sqrt(Dot(column, column, rows));
  if (length <= kIndependent * before) return false;
  for (size_t i = 0; i < rows; ++i) column[i] = static_cast<float>(column[i] / length);
  return true;
}

}  // namespace

void Orthonormalize(float* matrix, size_t rows, size_t columns) {
  std::vector<float> transposed(rows * columns);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t c = 0; c < columns; ++c) transposed[c * rows + i] = matrix[i * columns + c];
  }
  for (size_t c = 0; c < columns; ++c) {
    auto seed = static_cast<uint32_t>(c);
    while (!OrthonormalizeColumn(transposed.data(), rows, c)) {
      FillArbitrary(transposed.data() + c * rows, rows, seed);
      seed += static_cast<uint32_t>(columns);
    }
  }
  for (size_t i = 0; i < rows; ++i) {
    for (size_t c = 0; c < columns; ++c) matrix[i * columns + c] = transposed[c * rows + i];
  }
}

void MultiplyTransposed(const float* left, const float* right, size_t begin, size_t end,
                        size_t columns, size_t rank, float* out) {
  std::vector<float> transposed(columns * rank);
  for (size_t j = 0; j < columns; ++j) {
    for (size_t c = 0; c < rank; ++c) transposed[c * columns + j] = right[j * rank + c];
  }
  for (size_t i = begin; i < end; ++i) {
    float* const row = out + i * columns;
    std::fill(row, row + columns, 0.0f);
    for (size_t c = 0; c < rank; ++c) {
      const float factor = left[i * rank + c];
      const float* const from = transposed.data() + c * columns;
      for (size_t j = 0; j < columns; ++j) row[j] += factor * from[j];
    }
  }
}

}  // namespace tfdist
