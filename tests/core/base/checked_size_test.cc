// Sizes that wrap around.
#include "core/base/checked_size.h"

#include <cstdint>
#include <new>

#include "core/base/block.h"
#include "testing.h"

namespace tfdist::testing::base_checked_size_test {
namespace {

TEST_CASE("sizes") {
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  CHECK(((CheckedSize(3) * 4 + 5).Is(17) && CheckedSize().Is(0)));
  CHECK((CheckedSize(UINT64_MAX).Is(UINT64_MAX) && (CheckedSize(kHalf - 1) * 2).IsAtMost(-2ull)));
  const CheckedSize wrapped = CheckedSize((uint64_t{1} << 62) + 4) * sizeof(float);
  CHECK((!wrapped.value() && !wrapped.Is(16) && !wrapped.IsAtMost(UINT64_MAX)));
  CHECK((wrapped.text() == "more than 2^64" && CheckedSize(12).text() == "12"));
  // It stays so.
  CHECK((!(wrapped * 0).value() && !(CheckedSize(1) + wrapped).value()));
  CheckedSize sum = UINT64_MAX;
  CHECK((sum += 0).value());
  CHECK((!(sum += 1).value() && !(sum += 1).value()));
}

// Rounding the size up for the pool does not wrap around to a small one.
TEST_CASE("blocks") {
  ps::BlockPool pool;
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 100, SIZE_MAX / 2 + 1}) {
    bool thrown = false;
    try {
      pool.AllocateAtLeast(bytes);
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    CHECK(thrown);
  }
}

}  // namespace
}  // namespace tfdist::testing::base_checked_size_test
