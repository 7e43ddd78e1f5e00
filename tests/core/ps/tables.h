// Helpers for tests of tables.
#ifndef TFDIST_TESTS_CORE_PS_TABLES_H_
#define TFDIST_TESTS_CORE_PS_TABLES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/ps/table/table.h"
#include "testing.h"

namespace tfdist::testing {

using Ids = std::vector<int64_t>;
using Floats = std::vector<float>;

inline std::unique_ptr<ps::Table> Make(const ps::TableConfig& config,
                                       const std::string& name = "") {
  std::unique_ptr<ps::Table> table;
  REQUIRE_OK(ps::Table::Create(config, &table, name));
  return table;
}

inline ps::TableConfig Constant(uint32_t width, double value) {
  ps::TableConfig config;
  config.width = width;
  config.initializer = {ps::InitializerKind::kConstant, value, 0, 1};
  return config;
}

inline Floats Lookup(ps::Table& table, const Ids& ids, bool training = true, double now = 0) {
  Floats rows(ids.size() * table.config().width);
  table.Lookup(now, ids.data(), ids.size(), training, rows.data());
  return rows;
}

// The first element of a row.
inline float ValueOf(ps::Table& table, int64_t id) { return Lookup(table, {id}, false)[0]; }

inline void Apply(ps::Table& table, const Ids& ids, const Floats& gradients,
                  ps::StepValues step = {1, 1}, double now = 0) {
  REQUIRE(gradients.size() == ids.size() * table.config().width);
  table.Apply(now, ids.data(), ids.size(), gradients.data(), step);
}

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_PS_TABLES_H_
