// A server whose memory runs out, at every place where it allocates some: the request is refused,
// or its connection closed, and the server continues as if there had been no request.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "failing_new.h"
#include "ps/raw_ps_worker.h"
#include "ps/tables.h"
#include "scratch.h"

namespace {

std::atomic<int64_t> allocations_left{0};
thread_local bool is_spared = false;

void* Allocate(size_t bytes, size_t alignment) {
  if (allocations_left.load(std::memory_order_relaxed) > 0 && !is_spared &&
      --allocations_left == 0) {
    throw std::bad_alloc();
  }
  const size_t rounded = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  void* const memory = alignment <= alignof(std::max_align_t)
                           ? std::malloc(rounded)
                           : std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// All forms, also for the other tests of this binary: a sanitizer checks that no form frees memory
// of another.
void* operator new(size_t bytes) { return Allocate(bytes, alignof(std::max_align_t)); }
void* operator new[](size_t bytes) { return Allocate(bytes, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

namespace tfdist::testing {

void FailAllocation(int64_t nth) { allocations_left = nth; }
bool EndFailing() { return allocations_left.exchange(0) == 0; }
void SpareThisThread(bool spared) { is_spared = spared; }

namespace ps_server_out_of_memory_test {
namespace {

constexpr int64_t kMostAllocations = 2000;

TableRequest TwoTables(const std::string& a, const std::string& b) {
  TableConfig config = Constant(4, 1);
  return {{{a, config}, {b, config}}};
}

// A server with a variable, a bound one and two tables of some rows.
class Job {
 public:
  explicit Job(Mode mode) {
    server_ = StartServer(Options(mode, 1));
    server_->BeginLog(log_.path);
    worker_ = std::make_unique<RawPsWorker>(*server_, 0);
    CHECK(worker_->Create("x", {1, 2, 3, 4}) == 0);
    CHECK(worker_->Create("y", {5, 6, 7, 8}) == 1);
    worker_->Bind(Sgd(), 0);
    worker_->Bind(Sgd(), 1);
    worker_->Ask(MessageType::kTable, Encode(TwoTables("a", "b")));
    Lookup({1, 2, 3});
    worker_->Pull({0, 1});
  }

  Server& server() { return *server_; }
  RawPsWorker& worker() { return *worker_; }
  uint64_t rows(int table) const { return server_->tables()[table]->stats().rows; }
  Floats Value(uint32_t shard) { return worker_->Value(shard); }
  const std::string& log_path() const { return log_.path; }

  void Lookup(const Ids& ids) { worker_->Ask(MessageType::kLookup, LookupMeta(ids), Twice(ids)); }
  static std::string LookupMeta(const Ids& ids) {
    return Encode(
        LookupRequest{true, {{0, ids.size(), DType::kFloat32}, {1, ids.size(), DType::kBFloat16}}});
  }
  static std::string Twice(const Ids& ids) { return Raw(ids) + Raw(ids); }

  // Sends a request of which the nth allocation fails. Whether one did; `answer` is null if the
  // connection was closed instead, after which there is another one.
  bool Try(int64_t nth, MessageType type, const std::string& meta, const std::string& payload,
           std::optional<RawAnswer>* answer) {
    const auto header_and_all = MessageBytes(type, 1000, meta, payload);
    FailAllocation(nth);
    CHECK(worker_->peer().Send(header_and_all));
    RawAnswer received;
    if (worker_->TryAwait(&received)) *answer = std::move(received);
    const bool failed = EndFailing();
    if (!answer->has_value()) {
      const uint64_t sequence = worker_->sequence;
      worker_ = std::make_unique<RawPsWorker>(*server_, 0);
      worker_->sequence = sequence;
    }
    return failed;
  }

 private:
  const Scratch log_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<RawPsWorker> worker_;
};

struct Case {
  const char* name;
  MessageType type;
  std::function<std::string(Job&)> meta;
  std::string payload;
  // Whether it was done, all of it; checks that else nothing was.
  std::function<bool(Job&)> is_done;
};

bool BothOrNone(bool a, bool b) {
  CHECK(a == b);
  return a;
}

std::vector<Case> Cases() {
  const auto fixed = [](std::string meta) {
    return [meta = std::move(meta)](Job&) { return meta; };
  };
  const Ids fresh = {10, 11, 12};
  const auto has_rows = [](Job& job) { return BothOrNone(job.rows(0) == 6, job.rows(1) == 6); };
  std::vector<Case> cases;
  cases.push_back({"create", MessageType::kCreate,
                   fixed(Encode(CreateRequest{
                       {{"p", DType::kFloat32, 1, true}, {"q", DType::kFloat32, 1, true}}})),
                   Raw(Floats{1, 2}), [](Job& job) {
                     CreateReply reply;
                     const CreateRequest ask{
                         {{"p", DType::kFloat32, 1, false}, {"q", DType::kFloat32, 1, false}}};
                     CHECK_OK(Decode(job.worker().Ask(MessageType::kCreate, Encode(ask)), &reply));
                     const uint64_t shards = job.server().stats().shards;
                     CHECK((shards == 2 || shards == 4));
                     return BothOrNone(reply.shards[0] == 2, reply.shards[1] == 3);
                   }});
  cases.push_back(
      {"tables", MessageType::kTable, fixed(Encode(TwoTables("c", "d"))), "", [](Job& job) {
         const size_t tables = job.server().tables().size();
         CHECK((tables == 2 || tables == 4));
         // As a worker does that asks again.
         TableReply reply;
         CHECK_OK(
             Decode(job.worker().Ask(MessageType::kTable, Encode(TwoTables("c", "d"))), &reply));
         CHECK(reply.tables == (std::vector<uint32_t>{2, 3}));
         return tables == 4;
       }});
  cases.push_back({"bind", MessageType::kBind,
                   fixed(Encode(BindRequest{Sgd(), {{0, {}, 0.5}, {1, {}, 0.5}}})), "",
                   [](Job&) { return true; }});
  cases.push_back(
      {"lookup", MessageType::kLookup, fixed(Job::LookupMeta(fresh)), Job::Twice(fresh), has_rows});
  cases.push_back({"pull", MessageType::kPull, fixed(Encode(PullRequest{false, {{0, 0}, {1, 0}}})),
                   "", [](Job&) { return true; }});
  cases.push_back(
      {"set", MessageType::kSet, fixed(Encode(SetRequest{{0, 1}})), Raw(Floats(8, 9)),
       [](Job& job) { return BothOrNone(job.Value(0)[0] == 9, job.Value(1)[0] == 9); }});
  cases.push_back({"reduce", MessageType::kReduce,
                   fixed(Encode(ReduceRequest{7, 1, {DType::kFloat32}, {2}})), Raw(Floats{1, 2}),
                   [](Job& job) {
                     // The same execution again, as after a lost connection.
                     CHECK(job.worker().AwaitReduce(job.worker().RequestReduce(7, 1, {1, 2})) ==
                           (Floats{1, 2}));
                     return true;
                   }});
  cases.push_back({"dump", MessageType::kScanRows,
                   fixed(Encode(ScanRowsRequest{0, 0, 0, 100, true})), "",
                   [](Job&) { return true; }});
  cases.push_back({"find", MessageType::kFindRows, fixed(Encode(FindRowsRequest{0, 3, true})),
                   Raw(fresh), [](Job&) { return true; }});
  cases.push_back({"upsert", MessageType::kEditRows,
                   fixed(Encode(EditRowsRequest{0, EditKind::kUpsert, 3, 4, 0})),
                   Raw(fresh) + Raw(Floats(12, 9)), [](Job& job) {
                     CHECK((job.rows(0) == 3 || job.rows(0) == 6));
                     return job.rows(0) == 6;
                   }});
  cases.push_back({"assign", MessageType::kEditRows,
                   fixed(Encode(EditRowsRequest{0, EditKind::kReplace, 3, 4, 0})),
                   Raw(fresh) + Raw(Floats(12, 9)), [](Job& job) {
                     CHECK((job.rows(0) == 3 || job.rows(0) == 6));
                     return job.rows(0) == 6;
                   }});
  // Of a variable, some rows of another, and rows of tables: new ones and some that are there.
  cases.push_back({"push", MessageType::kPush,
                   [](Job& job) {
                     return Encode(job.worker().NewPush({{0, UpdateKind::kGradient, 0, 0, 0},
                                                         {1, UpdateKind::kRows, 0, 2, 2},
                                                         {0, UpdateKind::kTableRows, 0, 3, 4},
                                                         {1, UpdateKind::kTableRows, 0, 3, 4}}));
                   },
                   Raw(Floats(4, 1)) + Raw(Ids{0, 0}) + Raw(Floats(4, 1)) + Raw(Ids{1, 10, 11}) +
                       Raw(Floats(12, 1)) + Raw(Ids{1, 10, 11}) + Raw(Floats(12, 1)),
                   [](Job& job) {
                     const bool done = job.Value(0)[0] == 0;
                     CHECK(job.Value(0) == (done ? Floats{0, 1, 2, 3} : Floats{1, 2, 3, 4}));
                     CHECK(job.Value(1) == (done ? Floats{3, 4, 7, 8} : Floats{5, 6, 7, 8}));
                     for (int table = 0; table < 2; ++table) {
                       CHECK(job.rows(table) == (done ? 5 : 3));
                       CHECK(ValueOf(*job.server().tables()[table], 1) == (done ? 0 : 1));
                     }
                     // The log has it too, or says that it has not.
                     std::unique_ptr<Server> copy;
                     REQUIRE_OK(Server::Create(Options(Mode::kAsync, 1), "", 0, true, &copy));
                     uint64_t records = 0, left_out = 0;
                     if (access(job.log_path().c_str(), F_OK) == 0 &&
                         job.server().stats().log_bytes > 0) {
                       CHECK_OK(copy->ReplayLog(job.log_path(), &records, &left_out));
                     }
                     CHECK(records == (done && job.server().stats().log_failed == 0 ? 1 : 0));
                     return done;
                   }});
  return cases;
}

void TestRequests(Mode mode) {
  const int every = std::min(share, 3);
  for (const Case& one : Cases()) {
    int64_t nth = 1;
    int refused = 0, closed = 0;
    for (bool failed = true; failed; nth += every) {
      CHECK(nth < kMostAllocations);
      Job job(mode);
      std::optional<RawAnswer> answer;
      failed = job.Try(nth, one.type, one.meta(job), one.payload, &answer);
      closed += answer.has_value() ? 0 : 1;
      const bool is_ok = answer.has_value() && answer->status.ok();
      if (answer.has_value() && !is_ok) {
        ++refused;
        CHECK_STATUS(answer->status, StatusCode::kResourceExhausted);
        CHECK_CONTAINS(answer->status.message(), "parameter server 0, asked by worker 0: out of");
      }
      CHECK((failed || is_ok));
      CHECK((one.is_done(job) || !is_ok));
      // Other requests continue: no lock was left held.
      job.Lookup({1, 2, 3, 20});
      job.worker().Pull({0, 1});
      CHECK(!job.worker().Push<float>(0, UpdateKind::kGradient, {1, 1, 1, 1}));
      job.worker().Pull({0, 1});
      CHECK(!job.server().TakeSnapshot().shards.empty());
    }
    std::printf("  %s, mode %d: %d of %d refused, %d closed\n", one.name, static_cast<int>(mode),
                refused, static_cast<int>(nth - 1) / every - 1, closed);
    CHECK(refused > 0);
  }
}

Ids Iota(int64_t count) {
  Ids ids(count);
  for (int64_t i = 0; i < count; ++i) ids[i] = i;
  return ids;
}

// The rows of a copy by id; null if it has failed.
std::optional<std::map<int64_t, float>> CopyOf(Table& table) {
  std::map<int64_t, float> copy;
  SavedRows rows;
  try {
    while (table.NextSnapshotRows(10, &rows)) {
    }
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
  const size_t floats = table.content_floats();
  CHECK((rows.used.size() == rows.ids.size() && rows.counts.size() == rows.ids.size()));
  CHECK(rows.content.size() == rows.ids.size() * floats);
  for (size_t i = 0; i < rows.ids.size(); ++i) copy[rows.ids[i]] = rows.content[i * floats];
  return copy;
}

// While a copy is taken, changes have to be kept for it: without memory the copy fails, and says
// so.
void TestCopies() {
  bool failed = true;
  int lost = 0;
  for (int64_t nth = 1; failed; ++nth) {
    CHECK(nth < kMostAllocations);
    const auto table = Make(Constant(1, 1), "t");
    const Ids ids = Iota(100);
    Lookup(*table, ids);
    table->BeginSnapshot(false);
    const Floats gradients(100, 1);
    bool applied = true;
    SpareThisThread(false);
    FailAllocation(nth);
    try {
      table->Apply(0, ids.data(), ids.size(), gradients.data(), {1, 1});
    } catch (const std::bad_alloc&) {
      applied = false;
    }
    failed = EndFailing();
    SpareThisThread(true);
    for (const int64_t id : ids) CHECK(ValueOf(*table, id) == (applied ? 0 : 1));
    if (const auto copy = CopyOf(*table)) {
      CHECK(copy->size() == 100);
      for (const auto& [id, value] : *copy) CHECK(value == 1);
    } else {
      ++lost;
      table->EndSnapshot();
    }
    table->BeginSnapshot(false);
    const auto copy = CopyOf(*table);
    CHECK((copy && copy->size() == 100 && copy->at(7) == (applied ? 0 : 1)));
  }
  CHECK(lost > 0);
}

void TestFreeze() {
  bool failed = true;
  int thrown = 0;
  for (int64_t nth = 1; failed; ++nth) {
    CHECK(nth < kMostAllocations);
    Job job(Mode::kAsync);
    const Scratch next_log;
    SpareThisThread(false);
    FailAllocation(nth);
    try {
      const ServerSnapshot image = job.server().TakeSnapshot(false, next_log.path);
    } catch (const std::bad_alloc&) {
      ++thrown;
    }
    failed = EndFailing();
    SpareThisThread(true);
    CHECK(!job.worker().Push<float>(0, UpdateKind::kGradient, {1, 1, 1, 1}));
    job.Lookup({1, 2, 30});
    const ServerSnapshot image = job.server().TakeSnapshot();
    CHECK((image.shards.size() == 2 && image.tables.size() == 2));
    CHECK(CopyOf(*image.tables[1])->size() == 4);
  }
  CHECK(thrown > 3);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The real thing: the system gives no more address space while a value is received.
void ReceiveMoreThanThereIs() {
  const auto server = StartServer(Options(Mode::kAsync, 2));
  RawPsWorker worker(*server, 0), other(*server, 1);
  CHECK(other.Create("small", {1, 2}) == 0);
  const rlim_t now = static_cast<rlim_t>(1) << 30;
  const rlimit limit{now, now};
  CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
  constexpr uint64_t kBytes = uint64_t{1} << 31;
  FrameHeader header = HeaderOf(MessageType::kCreate, 1);
  const std::string meta =
      Encode(CreateRequest{{{"large", DType::kFloat32, kBytes / sizeof(float), true}}});
  header.meta_bytes = static_cast<uint32_t>(meta.size());
  header.payload_bytes = kBytes;
  CHECK(worker.peer().Send(Bytes(header, meta)));
  const std::string piece(1 << 20, 'x');
  for (uint64_t sent = 0; sent < kBytes; sent += piece.size()) {
    CHECK(worker.peer().Send(piece));
  }
  RawAnswer answer;
  CHECK(worker.TryAwait(&answer));
  CHECK_STATUS(answer.status, StatusCode::kResourceExhausted);
  CHECK_CONTAINS(answer.status.message(),
                 "parameter server 0, asked by worker 0: out of memory: the creation of variable "
                 "'large' needs more than the system gives");
  CHECK(other.Value(0) == (Floats{1, 2}));
  CHECK(server->stats().shards == 1);
}

void TestAddressSpace() {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) EndAfter(ReceiveMoreThanThereIs);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}
#else
void TestAddressSpace() {}  // sanitizers need address space of their own
#endif

TEST_CASE("address space") { TestAddressSpace(); }

TEST_CASE("requests") {
  SpareThisThread(true);
  TestRequests(Mode::kAsync);
  TestRequests(Mode::kSync);
}

TEST_CASE("copies") {
  SpareThisThread(true);
  TestCopies();
}

TEST_CASE("freeze") {
  SpareThisThread(true);
  TestFreeze();
}

}  // namespace
}  // namespace ps_server_out_of_memory_test
}  // namespace tfdist::testing
