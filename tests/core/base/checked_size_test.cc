// Sizes that wrap around.
#include "core/base/checked_size.h"

#include <cstdint>
#include <cstdio>
#include <new>

#include "core/base/block.h"
#include "testing.h"

namespace tfdist::testing::base_checked_size_test {
namespace {

void TestSizes() {
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  EXPECT((CheckedSize(3) * 4 + 5).Is(17) && CheckedSize().Is(0));
  EXPECT(CheckedSize(UINT64_MAX).Is(UINT64_MAX) && (CheckedSize(kHalf - 1) * 2).IsAtMost(-2ull));
  const CheckedSize wrapped = CheckedSize((uint64_t{1} << 62) + 4) * sizeof(float);
  EXPECT(!wrapped.value() && !wrapped.Is(16) && !wrapped.IsAtMost(UINT64_MAX));
  EXPECT(wrapped.text() == "more than 2^64" && CheckedSize(12).text() == "12");
  // It stays so.
  EXPECT(!(wrapped * 0).value() && !(CheckedSize(1) + wrapped).value());
  CheckedSize sum = UINT64_MAX;
  EXPECT((sum += 0).value());
  EXPECT(!(sum += 1).value() && !(sum += 1).value());
}

// Rounding the size up for the pool does not wrap around to a small one.
void TestBlocks() {
  ps::BlockPool pool;
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 100, SIZE_MAX / 2 + 1}) {
    bool thrown = false;
    try {
      pool.AllocateAtLeast(bytes);
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    EXPECT(thrown);
  }
}

void Main() {
  TestSizes();
  TestBlocks();
  std::puts("checked sizes: ok");
}

REGISTER_TEST(Main);

}  // namespace
}  // namespace tfdist::testing::base_checked_size_test
