// The sweeper evicts unused rows without a request.
#include "core/ps/store/sweeper.h"

#include <thread>

#include "ps/worker.h"

namespace tfdist::testing::ps_store_sweeper_test {
namespace {

TEST_CASE("sweep seconds") {
  ps::TableConfig config;
  CHECK(ps::SweepSeconds(config) == 0);
  config.min_norm = 1;
  CHECK(ps::SweepSeconds(config) == 60);
  config.ttl_seconds = 40;
  CHECK(ps::SweepSeconds(config) == 10);
  config.ttl_seconds = 1e6;
  CHECK(ps::SweepSeconds(config) == 60);
  config.ttl_seconds = 0.1;
  CHECK(ps::SweepSeconds(config) == 1);
}

TEST_CASE("sweeper") {
  ps::TableConfig config;
  config.ttl_seconds = 0.1;
  const auto server = StartServer(AsyncJob(1));
  Worker worker(0);
  worker.Connect(*server);
  const int table = worker.client().tables().Add("t", config);
  REQUIRE_OK(Call([&](ps::Done done) { worker.client().tables().Create(table, done); }));
  const ps::Memory rows = Hold(std::vector<float>(3));
  CHECK_OK(Call([&](ps::Done done) {
    worker.client().tables().Lookup({{table, {1, 2, 3}, rows}}, true, done);
  }));
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  while (server->tables()[0]->stats().rows > 0) {
    CHECK(Clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  CHECK(server->tables()[0]->stats().evicted_by_age == 3);
}

}  // namespace
}  // namespace tfdist::testing::ps_store_sweeper_test
