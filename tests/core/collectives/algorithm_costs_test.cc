// The costs of docs/reference/algorithms.md, row by row, against the counters.
#include <algorithm>

#include "collectives/jobs.h"
#include "core/collectives/selector.h"

namespace tfdist::testing::algorithm_costs_test {
namespace {

int Log2(int n) { return n < 2 ? 0 : 1 + Log2(n / 2); }  // rounded down
int CeilingLog2(int n) { return n < 2 ? 0 : 1 + CeilingLog2((n + 1) / 2); }

// A collective of N ranks, rank r on host r % H. B: bytes of the buffer. T: bytes of all blocks.
struct Case {
  Job job;
  int N, H;
  size_t width, B, T;

  size_t b(int r) const { return job.Block((r % N + N) % N) * width; }
  // Bytes of part i when the buffer is cut into `parts`.
  size_t Part(int i, int parts) const {
    i = (i % parts + parts) % parts;
    return (job.count * (i + 1) / parts - job.count * i / parts) * width;
  }
  int Relative(int r) const { return (r - job.root + N) % N; }
};

// Steps of the whole algorithm; messages and bytes that one rank sends.
struct Cost {
  int steps;
  int messages;
  size_t bytes;
};

struct Row {
  Method method;
  Cost (*cost)(const Case& c, int r);
};

const std::vector<Row> kTable = {
    {{CollectiveKind::kAllReduce, Algorithm::kRing},
     [](const Case& c, int r) {
       return Cost{2 * (c.N - 1), 2 * (c.N - 1), 2 * c.B - c.Part(r + 1, c.N) - c.Part(r + 2, c.N)};
     }},
    {{CollectiveKind::kAllReduce, Algorithm::kRecursiveDoubling},
     [](const Case& c, int r) {
       const int log = Log2(c.N), P = 1 << log, E = c.N - P;
       const int messages = r >= P ? 1 : r < E ? log + 1 : log;
       return Cost{log + (E > 0 ? 2 : 0), messages, messages * c.B};
     }},
    {{CollectiveKind::kAllReduce, Algorithm::kTwoLevel},
     [](const Case& c, int r) {
       const int host = r % c.H, position = r / c.H;
       const int on_host = (c.N - host + c.H - 1) / c.H, max_on_host = (c.N + c.H - 1) / c.H;
       const int steps = 2 * (max_on_host - 1) + 2 * (c.H - 1);
       const int down = position + 1 < on_host ? 1 : 0;
       if (position > 0) return Cost{steps, 1 + down, (1 + down) * c.B};
       const size_t ring = c.H == 1 ? 0 : 2 * c.B - c.Part(host + 1, c.H) - c.Part(host + 2, c.H);
       return Cost{steps, 2 * (c.H - 1) + down, ring + down * c.B};
     }},
    {{CollectiveKind::kAllReduce, Algorithm::kHalvingDoubling},
     [](const Case& c, int r) {
       const int log = Log2(c.N), P = 1 << log, E = c.N - P;
       const int steps = 2 * log + (E > 0 ? 2 : 0);
       if (r >= P) return Cost{steps, 1, c.B};
       // On the way down all segments but its own one; on the way up its own one in each step.
       size_t bytes = c.B - c.Part(r, P);
       for (int bit = 1; bit < P; bit *= 2) {
         for (int i = 0; i < bit; ++i) bytes += c.Part(r / bit * bit + i, P);
       }
       return Cost{steps, 2 * log + (r < E ? 1 : 0), bytes + (r < E ? c.B : 0)};
     }},
    {{CollectiveKind::kAllReduce, Algorithm::kDoubleTree},
     [](const Case& c, int r) {
       Cost cost{2 * Log2(c.N), 0, 0};
       for (int tree = 0; tree < 2; ++tree) {
         // The sum of one half goes up, and the result down to each child.
         const int place = (r + tree) % c.N + 1, half = place & -place;
         int messages = place == 1 << Log2(c.N) ? 0 : 1;
         if (half > 1) messages += place + 1 <= c.N ? 2 : 1;
         cost.messages += messages;
         cost.bytes += messages * c.Part(tree, 2);
       }
       return cost;
     }},
    {{CollectiveKind::kReduce, Algorithm::kTree},
     [](const Case& c, int r) {
       const int sends = r == c.job.root ? 0 : 1;
       return Cost{CeilingLog2(c.N), sends, sends * c.B};
     }},
    {{CollectiveKind::kReduce, Algorithm::kChain},
     [](const Case& c, int r) {
       const int sends = r == c.job.root ? 0 : 1;
       return Cost{c.N - 1, sends, sends * c.B};
     }},
    {{CollectiveKind::kBroadcast, Algorithm::kTree},
     [](const Case& c, int r) {
       const int relative = c.Relative(r);
       int children = 0;
       for (int bit = 1; bit < c.N && (relative & bit) == 0; bit *= 2) {
         children += relative + bit < c.N;
       }
       return Cost{CeilingLog2(c.N), children, children * c.B};
     }},
    {{CollectiveKind::kBroadcast, Algorithm::kChain},
     [](const Case& c, int r) {
       const int sends = c.Relative(r) == c.N - 1 ? 0 : 1;
       return Cost{c.N - 1, sends, sends * c.B};
     }},
    {{CollectiveKind::kReduceScatter, Algorithm::kRing},
     [](const Case& c, int r) { return Cost{c.N - 1, c.N - 1, c.T - c.b(r)}; }},
    {{CollectiveKind::kReduceScatter, Algorithm::kDirect},
     [](const Case& c, int r) { return Cost{1, c.N - 1, c.T - c.b(r)}; }},
    {{CollectiveKind::kAllGather, Algorithm::kRing},
     [](const Case& c, int r) { return Cost{c.N - 1, c.N - 1, c.T - c.b(r + 1)}; }},
    {{CollectiveKind::kAllGather, Algorithm::kBruck},
     [](const Case& c, int r) {
       size_t bytes = 0;
       for (int k = 1; k < c.N; k *= 2) {
         for (int i = 0; i < std::min(k, c.N - k); ++i) bytes += c.b(r + i);
       }
       return Cost{CeilingLog2(c.N), CeilingLog2(c.N), bytes};
     }},
    {{CollectiveKind::kGather, Algorithm::kDirect},
     [](const Case& c, int r) { return r == c.job.root ? Cost{1, 0, 0} : Cost{1, 1, c.b(r)}; }},
    {{CollectiveKind::kScatter, Algorithm::kDirect},
     [](const Case& c, int r) {
       return r == c.job.root ? Cost{1, c.N - 1, c.T - c.b(r)} : Cost{1, 0, 0};
     }},
    {{CollectiveKind::kAllToAll, Algorithm::kDirect},
     [](const Case& c, int r) {
       size_t bytes = 0;
       for (int to = 0; to < c.N; ++to) bytes += to == r ? 0 : c.job.Part(r, to) * c.width;
       return Cost{1, c.N - 1, bytes};
     }},
    {{CollectiveKind::kBarrier, Algorithm::kDissemination},
     [](const Case& c, int) {
       return Cost{CeilingLog2(c.N), CeilingLog2(c.N), static_cast<size_t>(CeilingLog2(c.N))};
     }},
};

// Runs the collective and compares the counters of every rank with the row. Messages are compared
// if none is empty and each fits into a chunk.
void TestRow(const Row& row, Ranks& comms, int hosts, size_t count, bool even) {
  Case c;
  c.N = static_cast<int>(comms.size());
  c.H = hosts;
  c.job.kind = row.method.kind;
  c.job.algorithm = row.method.algorithm;
  c.job.size = c.N;
  c.job.count = count;
  c.job.root = c.N / 2;
  c.job.even = even;
  c.width = ByteSize(c.job.dtype);
  c.B = count * c.width;
  c.T = c.job.Blocks(0, c.N) * c.width;

  std::vector<CommunicatorStats> before;
  std::vector<std::unique_ptr<Job::Running>> running;
  for (const auto& comm : comms) before.push_back(comm->stats());
  for (const auto& comm : comms) running.push_back(c.job.Start(*comm));
  for (int r = 0; r < c.N; ++r) c.job.Check(*comms[r], *running[r]);
  size_t sent = 0, received = 0, sent_far = 0;
  for (int r = 0; r < c.N; ++r) {
    const CommunicatorStats after = comms[r]->stats();
    const size_t bytes = after.bytes_sent - before[r].bytes_sent;
    const size_t chunks = after.chunks_sent - before[r].chunks_sent;
    const Cost cost = row.cost(c, r);
    const bool one_chunk_each = even && count >= static_cast<size_t>(c.N) && c.B <= kChunkBytes;
    if (bytes != cost.bytes || (one_chunk_each && chunks != static_cast<size_t>(cost.messages))) {
      std::fprintf(stderr,
                   "kind %d by %s, %zu elements, rank %d of %d on %d hosts: expected %zu "
                   "bytes in %d messages, received %zu in %zu\n",
                   static_cast<int>(row.method.kind), Name(row.method.algorithm), count, r, c.N,
                   c.H, cost.bytes, cost.messages, bytes, chunks);
      std::abort();
    }
    // Messages whose sizes are multiples of a chunk are cut into whole chunks.
    const bool whole_chunks = even && c.B > 0 && c.B % (2 * c.N * c.H * kChunkBytes) == 0;
    if (whole_chunks && row.method.kind != CollectiveKind::kBarrier) {
      CHECK(chunks == bytes / kChunkBytes);
    }
    sent += bytes;
    received += after.bytes_received - before[r].bytes_received;
    sent_far += after.bytes_sent_to_other_hosts - before[r].bytes_sent_to_other_hosts;
  }
  CHECK(sent == received);
  // Between hosts the traffic equals a ring with one rank for each host.
  if (row.method.algorithm == Algorithm::kTwoLevel) CHECK(sent_far == 2 * (c.H - 1) * c.B);
}

// The plan contains the number of steps, and its transfers use all of them and no others.
void TestSteps(const Row& row, int size, int hosts) {
  Case c;
  c.N = size;
  c.H = hosts;
  c.job.size = size;
  c.job.even = true;
  c.job.count = 24;
  c.width = 4;
  c.B = c.T = 0;
  std::vector<int> host_of;
  for (int r = 0; r < size; ++r) host_of.push_back(r % hosts);
  int last = 0;
  for (int r = 0; r < size; ++r) {
    Signature signature;
    signature.kind = static_cast<uint8_t>(row.method.kind);
    signature.algorithm = static_cast<uint8_t>(row.method.algorithm);
    signature.dtype = static_cast<uint8_t>(DType::kFloat32);
    signature.elements = c.job.count;
    const bool pairs = row.method.kind == CollectiveKind::kAllToAll;
    signature.blocks.assign(pairs ? 2 * size : size, 96);
    const Plan plan = MakePlan(signature, r, host_of);
    CHECK(plan.steps == row.cost(c, r).steps);
    for (const Transfer& transfer : plan.transfers) {
      CHECK(transfer.step < plan.steps);
      last = std::max<int>(last, transfer.step + 1);
    }
    const auto sends = std::count_if(
        plan.transfers.begin(), plan.transfers.end(),
        [](const Transfer& transfer) { return transfer.kind == Transfer::Kind::kSend; });
    CHECK(sends == row.cost(c, r).messages);
  }
  CHECK(last == row.cost(c, 0).steps);
}

TEST_CASE("costs") {
  for (int size = 2; size <= 8; ++size) {
    for (const int hosts : {1, 2, 3}) {
      if (hosts > size) continue;
      Ranks comms = ConnectedOn(size, hosts);
      // Its parts for 2, `size` and `hosts` ranks are whole chunks.
      const size_t large = static_cast<size_t>(2 * size * hosts) * kChunkBytes / 4;
      for (const Row& row : kTable) {
        if (hosts > 1 && row.method.algorithm != Algorithm::kTwoLevel) continue;
        TestSteps(row, size, hosts);
        for (const size_t count : {size_t{0}, size_t{1}, size_t{24}, size_t{841}}) {
          TestRow(row, comms, hosts, count, true);
          TestRow(row, comms, hosts, count, false);
        }
        if (size == 2 || size == 3) TestRow(row, comms, hosts, large, true);
      }
    }
  }
}

}  // namespace
}  // namespace tfdist::testing::algorithm_costs_test
