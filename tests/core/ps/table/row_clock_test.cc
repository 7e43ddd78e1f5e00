// The clock of rows: leaps of the machine's clock, and restarts of the server.
#include "core/ps/table/row_clock.h"

#include "core/ps/store/redo_log.h"
#include "core/ps/store/update.h"
#include "ps/tables.h"
#include "ps/worker.h"
#include "scratch.h"

namespace tfdist::testing::ps_table_row_clock_test {
namespace {

// A machine whose clocks a test sets; the server's threads read them.
struct Machine {
  std::atomic<double> steady{1000}, wall{1.7e9};

  ps::TimeSources sources() {
    return {[this] { return steady.load(); }, [this] { return wall.load(); }};
  }
  void Pass(double seconds) {
    steady = steady + seconds;
    wall = wall + seconds;
  }
};

TEST_CASE("clock") {
  Machine machine;
  ps::RowClock clock(machine.sources());
  CHECK(clock.Now() == 1.7e9);
  machine.wall = 1.8e9;
  CHECK(clock.Now() == 1.7e9);
  machine.wall = 0;
  machine.steady = 1005;
  CHECK(clock.Now() == 1.7e9 + 5);
  clock.ResumeFrom(30);
  machine.Pass(2);
  CHECK(clock.Now() == 32);
}

constexpr double kTtl = 4;  // seconds; the sweeper runs every second

class Job {
 public:
  explicit Job(Machine* machine) {
    options_ = AsyncJob(1);
    options_.time = machine->sources();
  }

  void Start(const ps::ServerSnapshot& image = {}, const std::string& log = "") {
    worker_.reset();
    server_.reset();
    REQUIRE_OK(ps::Server::Create(options_, "", 0, true, &server_));
    REQUIRE_OK(server_->Restore(image));
    uint64_t records = 0, left_out = 0;
    if (!log.empty()) CHECK_OK(server_->ReplayLog(log, &records, &left_out));
    REQUIRE_OK(server_->Restore({}));  // as the start of a process does
    REQUIRE_OK(server_->Start(TestKey()));
    worker_ = std::make_unique<Worker>(0);
    worker_->Connect(*server_);
    ps::TableConfig config = Constant(1, 0);
    config.ttl_seconds = kTtl;
    table_ = worker_->client().tables().Add("t", config);
    REQUIRE_OK(Call([&](ps::Done done) { worker_->client().tables().Create(table_, done); }));
  }
  // Starts, and creates row 1, which is about to expire, and row 2.
  void MakeOldAndNewRow(Machine* machine) {
    Start();
    Lookup({1});
    machine->Pass(kTtl - 1);
    Lookup({2});
  }
  void Lookup(const Ids& ids) {
    const ps::Memory rows = Hold(Floats(ids.size()));
    CHECK_OK(Call([&](ps::Done done) {
      worker_->client().tables().Lookup({{table_, ids, rows}}, true, done);
    }));
  }
  void Push(const Ids& ids) {
    CHECK_OK(worker_->Pull({}));
    worker_->client().parameters().StageRows({1, 1}, {table_, ids, Hold(Floats(ids.size(), 1))});
    CHECK_OK(worker_->PushStaged());
    CHECK_OK(worker_->client().Flush(kPatience));
  }
  // The statistics after a sweep at the present time.
  ps::TableStats Swept() {
    table().Sweep(server_->TakeSnapshot().time);
    return table().stats();
  }
  void AwaitRows(uint64_t rows) {
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    while (table().stats().rows != rows) {
      CHECK(Clock::now() < deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  ps::Table& table() { return *server_->tables()[0]; }
  ps::Server& server() { return *server_; }
  // A snapshot, copied as a file would be.
  ps::ServerSnapshot Save(const std::string& log = "") {
    ps::ServerSnapshot image = server_->TakeSnapshot(false, log);
    for (auto& table : image.tables) {
      const std::shared_ptr<ps::Table> from = table;
      table = Make(from->config(), from->name());
      ps::SavedRows rows;
      while (from->NextSnapshotRows(100, &rows)) {
        CHECK_OK(table->ImportRows(rows));
        rows = {};
      }
    }
    return image;
  }

 private:
  ps::ServerOptions options_;
  std::unique_ptr<ps::Server> server_;
  std::unique_ptr<Worker> worker_;
  int table_ = -1;
};

// The machine's clock is set while the server runs.
TEST_CASE("leap of the machine") {
  Machine machine;
  Job job(&machine);
  job.Start();
  job.Lookup({1, 2, 3});
  machine.wall = machine.wall + 7200;
  CHECK(job.Swept().rows == 3);
  machine.wall = machine.wall - 14400;
  machine.Pass(kTtl - 1);
  job.Lookup({1});
  CHECK(job.Swept().rows == 3);
  // Elapsed time counts: the sweeper evicts the rows.
  machine.Pass(2);
  job.AwaitRows(1);
  CHECK(job.table().stats().evicted_by_age == 2);
}

// Rows keep their age over a restart, also if the machine's clocks were set.
TEST_CASE("restart") {
  for (const double leap : {0.0, 7200.0, -7200.0}) {
    Machine machine;
    Job job(&machine);
    job.MakeOldAndNewRow(&machine);
    const double saved = job.server().TakeSnapshot().time;
    const ps::ServerSnapshot image = job.Save();
    machine.Pass(86400);  // a day without a server
    machine.wall = machine.wall + leap;
    machine.steady = 3;  // the machine was restarted
    job.Start(image);
    CHECK(job.server().TakeSnapshot().time == saved);
    CHECK(job.Swept().rows == 2);
    machine.Pass(2);
    CHECK(job.Swept().rows == 1);
    job.Lookup({2});
    machine.Pass(kTtl - 1);
    CHECK(job.Swept().rows == 1);
  }
}

// The log is newer than the snapshot; rows that it creates have its time.
TEST_CASE("log") {
  for (const bool with_snapshot : {true, false}) {
    const Scratch file;
    Machine machine;
    Job job(&machine);
    job.Start();
    ps::ServerSnapshot image;
    if (with_snapshot) {
      image = job.Save(file.path);
    } else {
      job.server().BeginLog(file.path);
    }
    machine.Pass(100);
    job.Push({1});
    machine.Pass(kTtl - 1);
    job.Push({2});
    const double last = job.server().TakeSnapshot().time;
    machine.Pass(86400);
    job.Start(image, file.path);
    CHECK(job.server().TakeSnapshot().time == last);
    CHECK(job.Swept().rows == 2);
    machine.Pass(2);
    CHECK(job.Swept().rows == 1);
  }
}

// A snapshot from before this clock existed has no time: its rows keep their relative ages.
TEST_CASE("image without time") {
  Machine machine;
  Job job(&machine);
  job.MakeOldAndNewRow(&machine);
  for (const double leap : {7200.0, -7200.0}) {
    ps::ServerSnapshot image = job.Save();
    image.time = 0;
    Machine later;
    later.wall = machine.wall + leap;
    Job restarted(&later);
    restarted.Start(image);
    CHECK(restarted.Swept().rows == 2);
    later.Pass(2);
    CHECK(restarted.Swept().rows == 1);
  }
}

}  // namespace
}  // namespace tfdist::testing::ps_table_row_clock_test
