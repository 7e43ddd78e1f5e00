// A worker that looks up rows, for tests.
#ifndef TFDIST_TESTS_CORE_PS_CLIENT_LOOKUPS_H_
#define TFDIST_TESTS_CORE_PS_CLIENT_LOOKUPS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "ps/worker.h"

namespace tfdist::testing {

using Ids = std::vector<int64_t>;
using Floats = std::vector<float>;

inline ps::TableConfig Random(uint32_t width) {
  ps::TableConfig config;
  config.width = width;
  config.initializer = {ps::InitializerKind::kUniform, -1, 1, width};
  return config;
}

// A worker and its servers. Their tables differ from the initial rows by steps of SGD.
struct LookupJob {
  explicit LookupJob(int count, bool expose = true, double timeout_seconds = kPatience)
      : worker(0, 1, count, timeout_seconds, 0, expose) {
    for (int i = 0; i < count; ++i) {
      servers.push_back(StartServer(AsyncJob(1)));
      worker.Connect(*servers.back(), i);
    }
  }
  int Make(uint32_t width) {
    const int table = client().tables().Add(StrCat("table ", tables++), Random(width));
    REQUIRE_OK(Call([&](ps::Done done) { client().tables().Create(table, done); }));
    return table;
  }
  ps::Client& client() { return worker.client(); }
  ps::Lookups& lookups() { return worker.client().tables().lookups(); }

  Floats Lookup(int table, const Ids& ids, size_t width, bool training = true,
                DType wire = DType::kFloat32) {
    const ps::Memory rows = Hold(Floats(ids.size() * width, -7));
    REQUIRE_OK(Call([&](ps::Done done) {
      client().tables().Lookup({{table, ids, rows, wire}}, training, done);
    }));
    return Values(rows, ids.size() * width);
  }
  static Floats Values(const ps::Memory& rows, size_t count) {
    const auto* values = reinterpret_cast<const float*>(rows.data);
    return Floats(values, values + count);
  }
  // A step that adds 1 to all elements of these rows.
  void Step(int table, const Ids& ids, size_t width) {
    client().parameters().StageRows({1, 1}, {table, ids, Hold(Floats(ids.size() * width, -1))});
    REQUIRE_OK(worker.PushStaged());
    REQUIRE_OK(client().Flush(kPatience));
  }

  std::vector<std::unique_ptr<ps::Server>> servers;
  Worker worker;
  int tables = 0;
};

// The initial rows plus a number of steps.
inline Floats First(const Ids& ids, uint32_t width, int steps = 0) {
  Floats rows(ids.size() * width);
  for (size_t i = 0; i < ids.size(); ++i) {
    Random(width).initializer.Fill(ids[i], width, rows.data() + i * width);
  }
  for (int i = 0; i < steps; ++i) {
    for (float& each : rows) each += 1;
  }
  return rows;
}

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_PS_CLIENT_LOOKUPS_H_
