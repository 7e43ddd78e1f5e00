// Blocks of the parameter server: reuse, alignment, and sole ownership.
#include "core/base/block.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "testing.h"

namespace tfdist::testing::block_test {
namespace {

using ps::BlockPool;
using ps::BlockPtr;

TEST_CASE("blocks are aligned and apart") {
  BlockPool pool;
  std::vector<BlockPtr> blocks;
  for (const size_t bytes : {0, 1, 63, 64, 65, 4096, 1000003}) {
    for (int n = 0; n < 3; ++n) {
      blocks.push_back(pool.Allocate(bytes));
      CHECK(blocks.back()->bytes() == bytes);
      CHECK(reinterpret_cast<uintptr_t>(blocks.back()->data()) % 64 == 0);
      std::memset(blocks.back()->data(), static_cast<int>(blocks.size()), bytes);
    }
  }
  for (size_t b = 0; b < blocks.size(); ++b) {
    CHECK_EACH(i, blocks[b]->bytes(), blocks[b]->data()[i] == static_cast<char>(b + 1));
  }
}

TEST_CASE("returned blocks are given out again") {
  BlockPool pool;
  std::set<const void*> first;
  {
    std::vector<BlockPtr> held;
    for (int n = 0; n < 4; ++n) held.push_back(pool.Allocate(5000));
    for (const BlockPtr& block : held) first.insert(block->data());
  }
  CHECK(first.size() == 4);
  const BlockPtr other = pool.Allocate(5001);
  CHECK(first.count(other->data()) == 0);
  std::set<const void*> second;
  std::vector<BlockPtr> held;
  for (int n = 0; n < 4; ++n) held.push_back(pool.Allocate(5000));
  for (const BlockPtr& block : held) second.insert(block->data());
  CHECK(second == first);
}

TEST_CASE("the last holder returns a block") {
  BlockPool pool;
  BlockPtr block = pool.Allocate(100);
  const void* const memory = block->data();
  CHECK(ps::IsSoleOwner(block));
  BlockPtr reader = block;
  CHECK((!ps::IsSoleOwner(block) && !ps::IsSoleOwner(reader)));
  block.reset();
  CHECK(ps::IsSoleOwner(reader));
  CHECK(pool.Allocate(100)->data() != memory);
  reader.reset();
  const BlockPtr one = pool.Allocate(100), two = pool.Allocate(100);
  CHECK((one->data() == memory || two->data() == memory));
}

TEST_CASE("blocks outlive their pool") {
  std::vector<BlockPtr> held;
  {
    BlockPool pool;
    for (int n = 0; n < 3; ++n) held.push_back(pool.Allocate(256));
  }
  for (const BlockPtr& block : held) std::memset(block->data(), 1, block->bytes());
  held.clear();
}

// Only the reference count tells here that the reader has finished. The thread sanitizer checks
// that it orders the reads before the writes.
TEST_CASE("a writer comes after former readers") {
  BlockPool pool;
  const BlockPtr block = pool.Allocate(4096);
  std::memset(block->data(), 1, block->bytes());
  for (int turn = 0; turn < 50; ++turn) {
    std::thread reader([held = block]() mutable {
      CHECK_EACH(i, held->bytes(), held->data()[i] == held->data()[0]);
      held.reset();
    });
    while (!ps::IsSoleOwner(block)) std::this_thread::yield();
    std::memset(block->data(), turn, block->bytes());
    reader.join();
  }
}

// Like a server: readers hold the newest block; a writer changes it in place if it is the sole
// owner, and replaces it otherwise. A reader must see one version in the whole block.
TEST_CASE("readers never see a write") {
  constexpr size_t kNumbers = 512;
  constexpr int kVersions = 20000;
  BlockPool pool;
  std::mutex mutex;  // of `newest`
  BlockPtr newest = pool.Allocate(kNumbers * sizeof(int));
  std::memset(newest->data(), 0, newest->bytes());
  std::atomic<bool> done = false;
  std::vector<std::thread> readers;
  for (int r = 0; r < 3; ++r) {
    readers.emplace_back([&] {
      int last = 0;
      while (!done) {
        BlockPtr held;
        {
          const std::lock_guard<std::mutex> lock(mutex);
          held = newest;
        }
        const auto* const numbers = reinterpret_cast<const int*>(held->data());
        CHECK(numbers[0] >= last);
        last = numbers[0];
        CHECK_EACH(i, kNumbers, numbers[i] == last);
      }
    });
  }
  int in_place = 0;
  for (int version = 1; version <= kVersions; ++version) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (ps::IsSoleOwner(newest)) {
      ++in_place;
    } else {
      newest = pool.Allocate(newest->bytes());
    }
    auto* const numbers = reinterpret_cast<int*>(newest->data());
    for (size_t i = 0; i < kNumbers; ++i) numbers[i] = version;
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(in_place > 0);
  CHECK(ps::IsSoleOwner(newest));
}

TEST_CASE("many threads take and return") {
  BlockPool pool;
  OnRanks(4, [&](int rank) {
    std::vector<BlockPtr> held(8);
    for (int turn = 0; turn < 2000; ++turn) {
      BlockPtr& place = held[turn % held.size()];
      if (place != nullptr) {
        CHECK_EACH(i, place->bytes(), place->data()[i] == rank);
      }
      place = pool.Allocate(32 + 32 * (turn % 3));
      std::memset(place->data(), rank, place->bytes());
    }
  });
}

}  // namespace
}  // namespace tfdist::testing::block_test
