// Thousands of collectives of every kind in any order, and hundreds of communicators, with exact
// results and nothing left over.
#include <algorithm>
#include <cstring>
#include <random>

#include "calls.h"
#include "values.h"

namespace tfdist::testing {
namespace {

using Random = std::mt19937_64;

constexpr int kCollectives = 2000;
constexpr int kBatch = 50;  // how many are in flight on a rank

// One collective, the same on every rank because it follows from its key.
struct Task {
  Task(uint64_t key, int size) : key(key), size(size), salt(key * 7919) {
    Random random(key);
    kind = static_cast<CollectiveKind>(1 + random() % 3);
    dtype = static_cast<DType>(1 + random() % (kind == CollectiveKind::kAllReduce ? 6 : 7));
    op = random() % 2 == 0 ? ReduceOp::kSum : ReduceOp::kMean;
    root = static_cast<int>(random() % size);
    const size_t sizes[] = {0, 1, 2, 17, 500, 3000, 20000};
    count = sizes[random() % 7];
    for (int rank = 0; rank < size; ++rank) {
      const size_t part = count / (1 + random() % 4);
      blocks.push_back(part);
    }
  }

  // Multiples of the number of ranks, so that a mean is exact.
  int Value(int rank, size_t i) const {
    return size * static_cast<int>((i + salt + 5 * rank) % 11);
  }
  size_t Count(int rank) const { return kind == CollectiveKind::kAllGather ? blocks[rank] : count; }
  size_t Total() const {
    if (kind != CollectiveKind::kAllGather) return count;
    size_t total = 0;
    for (const size_t block : blocks) total += block;
    return total;
  }
  std::string Encoded(size_t elements, const std::function<int(size_t)>& value) const {
    const size_t width = ByteSize(dtype);
    std::string bytes(elements * width, '\0');
    for (size_t i = 0; i < elements; ++i) Store(dtype, bytes.data() + i * width, value(i));
    return bytes;
  }
  std::string Contribution(int rank) const {
    return Encoded(Count(rank), [&](size_t i) { return Value(rank, i); });
  }
  std::string Expected() const {
    if (kind == CollectiveKind::kBroadcast) return Contribution(root);
    std::string bytes;
    if (kind == CollectiveKind::kAllGather) {
      for (int rank = 0; rank < size; ++rank) bytes += Contribution(rank);
      return bytes;
    }
    return Encoded(count, [this](size_t i) {
      int sum = 0;
      for (int rank = 0; rank < size; ++rank) sum += Value(rank, i);
      return op == ReduceOp::kMean ? sum / size : sum;
    });
  }

  // Starts it on one rank; `memory` holds the result at its end.
  Ending Start(Communicator& comm, std::string* memory) const {
    auto [options, ending] = Prepare(comm, {key, StrCat("task ", key)});
    const int rank = comm.rank();
    *memory = Contribution(rank);
    if (kind == CollectiveKind::kAllGather) {
      std::vector<size_t> bytes;
      size_t before = 0;
      for (int r = 0; r < size; ++r) {
        bytes.push_back(blocks[r] * ByteSize(dtype));
        if (r < rank) before += bytes.back();
      }
      memory->insert(0, before, 'x');
      memory->resize(Total() * ByteSize(dtype), 'x');
      comm.AllGather(std::move(options), dtype, bytes, View(memory));
    } else if (kind == CollectiveKind::kBroadcast) {
      comm.Broadcast(std::move(options), dtype, root, View(memory));
    } else {
      comm.AllReduce(std::move(options), View(memory), View(memory), dtype, op);
    }
    return std::move(ending);
  }

  // In two pieces, cut between elements.
  FlatView View(std::string* memory) const {
    const size_t cut = Total() / 3 * ByteSize(dtype);
    return FlatView({{memory->data(), cut}, {memory->data() + cut, memory->size() - cut}});
  }

  uint64_t key;
  int size;
  uint64_t salt;
  CollectiveKind kind;
  DType dtype;
  ReduceOp op;
  int root;
  size_t count;
  std::vector<size_t> blocks;
};

void TestRandomCollectives(int size, int collectives) {
  auto comms = Connected(size);
  OnRanks(size, [&](int rank) {
    Random random(1000 + rank);
    for (int first = 0; first < collectives; first += kBatch) {
      std::vector<Task> tasks;
      for (int i = 0; i < kBatch; ++i) tasks.emplace_back(first + i, size);
      std::shuffle(tasks.begin(), tasks.end(), random);
      std::vector<std::string> memory(kBatch);
      std::vector<Ending> endings;
      for (int i = 0; i < kBatch; ++i) {
        endings.push_back(tasks[i].Start(*comms[rank], &memory[i]));
      }
      for (int i = 0; i < kBatch; ++i) {
        EXPECT_OK(Wait(endings[i]));
        EXPECT(memory[i] == tasks[i].Expected());
      }
    }
    EXPECT(comms[rank]->stats().collectives == static_cast<uint64_t>(collectives));
  });
}

void TestManyCommunicators() {
  const auto once = [](int turn) {
    const int size = 2 + turn % 3;
    auto comms = Connected(size);
    OnRanks(size, [&](int rank) {
      std::vector<float> values(100, rank + turn);
      Ending ending = AllReduce(*comms[rank], values);
      EXPECT_OK(Wait(ending));
      EXPECT(values[99] == size * turn + size * (size - 1) / 2);
      // Some leave and close while others are still at it, some leave, and some are merely
      // destroyed.
      if (turn % 3 > 0) comms[rank]->Leave();
      if (turn % 3 > 1) comms[rank]->Close();
    });
  };
  once(0);
  const int before = OpenDescriptors();
  for (int turn = 1; turn <= 200; ++turn) once(turn);
  EXPECT(OpenDescriptors() == before);
}

// Collectives that start, from several threads, while the communicator ends: each ends once, and
// soon.
void TestEndUnderLoad(const std::function<void(Communicator&)>& end) {
  for (int turn = 0; turn < 10; ++turn) {
    auto comms = Connected(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      for (uint64_t key = 0; key < 3; ++key) {
        threads.emplace_back([&comms, rank, key] {
          for (bool ended = false; !ended;) {
            std::vector<float> values(key * 10000 + 1, 1);
            Ending ending = AllReduce(*comms[rank], values, {key});
            const Status status = Wait(ending);
            if (status.ok()) EXPECT(values.back() == 2);
            ended = !status.ok();
          }
        });
      }
    }
    EXPECT(Eventually([&] { return comms[0]->stats().collectives > 20; }));
    end(*comms[turn % 2]);
    for (std::thread& thread : threads) thread.join();
  }
}

void Main() {
  TestRandomCollectives(2, kCollectives);
  TestRandomCollectives(3, kCollectives / 5);
  TestRandomCollectives(4, kCollectives / 5);
  TestManyCommunicators();
  TestEndUnderLoad([](Communicator& comm) { comm.Close(); });
  TestEndUnderLoad([](Communicator& comm) { comm.Leave(); });
  TestEndUnderLoad(
      [](Communicator& comm) { comm.Abort(Status(StatusCode::kUnavailable, "enough")); });
  std::puts("stress: ok");
}

}  // namespace
}  // namespace tfdist::testing

int main() { tfdist::testing::Main(); }
