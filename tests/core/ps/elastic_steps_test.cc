// Units of work of an elastic job on real servers: collected, then applied or forgotten.
#include "ps/raw_ps_worker.h"
#include "ps/worker.h"

namespace tfdist::testing::ps_elastic_steps_test {
namespace {

constexpr uint64_t kJob = 7;

ServerOptions ElasticJob(int workers) {
  ServerOptions options = Options(Mode::kSync, workers);
  options.schedule.elastic = true;
  // No worker is waited for.
  options.schedule.worker_timeout_seconds = options.schedule.start_timeout_seconds = 0.1;
  return options;
}

// A member that speaks the messages by hand.
class Member : public RawPsWorker {
 public:
  using RawPsWorker::RawPsWorker;

  ResolveReply Resolve(uint64_t generation, uint64_t units, std::vector<uint32_t> workers,
                       uint64_t job = kJob) {
    ResolveReply reply;
    const ResolveRequest request{{job, generation, units}, std::move(workers)};
    CHECK_OK(Decode(Ask(MessageType::kResolve, Encode(request)), &reply));
    return reply;
  }
  // Whether it was dropped.
  bool PushUnit(uint32_t shard, float gradient, uint64_t generation, uint64_t unit) {
    PushRequest push = NewPush({{shard, UpdateKind::kGradient, 0, 0, 0}});
    push.unit = {kJob, generation, unit};
    return Push(push, Raw(Floats{gradient}));
  }
  CommitReply Commit(uint64_t generation, uint64_t unit) {
    CommitReply reply;
    const CommitRequest request{{kJob, generation, unit}, true};
    CHECK_OK(Decode(Ask(MessageType::kCommit, Encode(request)), &reply));
    return reply;
  }
};

TEST_CASE("applied") {
  auto server = StartServer(ElasticJob(3));
  Member a(*server, 0), b(*server, 1);
  const uint32_t w = a.Create("w", Floats{0});
  a.Bind(Sgd(), w);
  CHECK(a.PushUnit(w, 1, 1, 0));  // no generation yet
  CHECK((!a.Resolve(1, 0, {0, 1}).refused && b.Resolve(1, 0, {0, 1}).generation == 1));
  float sum = 0;
  for (uint64_t unit = 0; unit < 3; ++unit) {
    CHECK((!a.PushUnit(w, 1, 1, unit) && !b.PushUnit(w, 10, 1, unit)));
    // Collected, not applied; no pull waits.
    CHECK((a.Value(w, true) == Floats{-sum} && b.Value(w, false) == Floats{-sum}));
    CHECK((a.Commit(1, unit).open && a.Value(w, true) == Floats{-sum}));
    CHECK(!b.Commit(1, unit).open);
    sum += 11;  // not scaled, though there are 3 workers
    CHECK(a.Value(w, true) == Floats{-sum});
    const CommitReply again = a.Commit(1, unit);
    CHECK((!again.open && !again.lost));
  }
  CHECK(a.Commit(1, 7).lost);
  const ServerStats stats = server->stats();
  CHECK((stats.clock == 3 && stats.pushes == 6 && stats.dropped_pushes == 1));
}

TEST_CASE("resolved") {
  auto server = StartServer(ElasticJob(3));
  Member a(*server, 0), b(*server, 1), c(*server, 2);
  const uint32_t w = a.Create("w", Floats{0});
  a.Bind(Sgd(), w);
  for (Member* member : {&a, &b, &c}) member->Resolve(1, 0, {0, 1, 2});
  CHECK((!a.PushUnit(w, 1, 1, 0) && !b.PushUnit(w, 10, 1, 0) && !c.PushUnit(w, 100, 1, 0)));
  CHECK(a.Commit(1, 0).open);
  c.Leave();  // does not complete the unit
  CHECK(a.Value(w) == Floats{0});
  // No remaining worker has done the unit.
  CHECK((!b.Resolve(2, 0, {0, 1}).refused && b.Value(w) == Floats{0}));
  CHECK(a.PushUnit(w, 1000, 1, 0));  // of the former generation
  CHECK((a.Commit(1, 0).open == false && !a.Resolve(2, 0, {0, 1}).refused));
  CHECK((!a.PushUnit(w, 1, 2, 0) && !b.PushUnit(w, 10, 2, 0)));
  CHECK((b.Commit(2, 0).open && a.Value(w) == Floats{0}));
  // Worker 1 has done it.
  CHECK((!b.Resolve(3, 1, {1, 2}).refused && b.Value(w) == Floats{-11}));
  CHECK((a.Resolve(2, 0, {0, 1}).refused && a.Resolve(2, 0, {0, 1}).generation == 3));
  CHECK((!c.Resolve(3, 1, {1, 2}).refused && c.Value(w) == Floats{-11}));
  int undone = 0, closed = 0;
  for (const TraceEvent& event : server->trace()) {
    undone += event.kind == 5;
    closed += event.kind == 4;
  }
  CHECK((undone == 1 && closed == 1));
}

TEST_CASE("refused") {
  auto server = StartServer(ElasticJob(2));
  Member a(*server, 0);
  for (const std::vector<uint32_t>& workers : {std::vector<uint32_t>{}, {0, 2}}) {
    const RawAnswer answer =
        a.Try(MessageType::kResolve, Encode(ResolveRequest{{kJob, 1, 0}, workers}));
    CHECK(answer.status.code() == StatusCode::kInvalidArgument);
    CHECK_CONTAINS(answer.status.message(), "of an elastic job");
  }
  // The data tasks that a unit has trained could not be undone.
  PushRequest of_tasks = a.NewPush({});
  of_tasks.of_tasks = true;
  CHECK_CONTAINS(a.Try(MessageType::kPush, Encode(of_tasks)).status.message(),
                 "a push of data tasks in an elastic job");
  auto fixed = StartServer(Options(Mode::kSync, 2));
  Member b(*fixed, 0);
  CHECK(b.Try(MessageType::kResolve, Encode(ResolveRequest{{kJob, 1, 0}, {0}})).status.code() ==
        StatusCode::kInvalidArgument);
}

// A server that is started again has no open unit; its worker tells it the generation.
TEST_CASE("server started again") {
  auto server = StartServer(ElasticJob(2));
  Worker worker(1, 2);
  worker.Connect(*server);
  const int w = worker.Make<float>("w", {5});
  REQUIRE_OK(worker.BindSgd({w}));
  ps::Client& client = worker.client();
  const auto resolve = [&](uint64_t generation, uint64_t units) {
    return Call([&](ps::Done done) {
      client.commits().Resolve({{kJob, generation, units}, {1}}, std::move(done));
    });
  };
  const auto push = [&] {
    return Call([&](ps::Done done) { client.parameters().Push({}, std::move(done), true, true); });
  };
  ps::CommitOutcome outcome;
  const auto commit = [&] {
    return Call([&](ps::Done done) {
      client.commits().Commit([&, done](const Status& status, const ps::CommitOutcome& of_servers) {
        outcome = of_servers;
        done(status);
      });
    });
  };
  CHECK_OK(resolve(1, 0));
  client.commits().BeginUnit(0);
  CHECK_OK(worker.Pull({w}));
  worker.Stage(w, {1});
  CHECK_OK(push());
  CHECK_OK(commit());
  CHECK((!outcome.open && !outcome.lost));
  CHECK_OK(worker.Pull({w}));
  CHECK(worker.Value(w) == Floats{4});

  client.commits().BeginUnit(1);
  worker.Stage(w, {1});
  CHECK_OK(push());
  auto next = StartServer(ElasticJob(2), server->TakeSnapshot());
  server->Close();
  worker.Connect(*next);
  CHECK_OK(commit());
  CHECK((!outcome.open && outcome.lost && client.stats().dropped_pushes == 1));
  CHECK_OK(worker.Pull({w}));
  CHECK(worker.Value(w) == Floats{4});
  client.commits().BeginUnit(2);
  worker.Stage(w, {1});
  CHECK_OK(push());
  CHECK_OK(commit());
  CHECK(!outcome.lost);
  CHECK_OK(worker.Pull({w}));
  CHECK(worker.Value(w) == Floats{3});

  CHECK_OK(resolve(3, 3));
  const Status refused = resolve(2, 3);
  CHECK(refused.code() == StatusCode::kFailedPrecondition);
  CHECK_CONTAINS(refused.message(), "ps 0 serves generation 3");
}

}  // namespace
}  // namespace tfdist::testing::ps_elastic_steps_test
