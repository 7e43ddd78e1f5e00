// The configuration of a table. It is the same on all servers and for all workers.
#ifndef TFDIST_OPS_CORE_PS_TABLE_TABLE_CONFIG_H_
#define TFDIST_OPS_CORE_PS_TABLE_TABLE_CONFIG_H_

#include <array>
#include <cstdint>
#include <string>

#include "core/ps/optimizers/optimizer.h"
#include "core/ps/table/row_initializer.h"

namespace tfdist::ps {

// How a gradient changes a row.
enum class RowRule : uint8_t {
  kElementwise = 1,     // like a variable with `optimizer`; Adam is lazy
  kRowwiseAdagrad = 2,  // one accumulator per row, of the mean squared gradient
  kGroupFtrl = 3,       // Ftrl with a penalty on each row's norm (Yue et al. 2021)
  kExactAdam = 4,       // rows catch up with the steps in which they had no gradient
  kAdafactor = 5,       // each row is a vector (Shazeer and Stern 2018, algorithm 5)
  kLamb = 6,            // one trust ratio per row (You et al. 2020)
};
enum class EvictionPolicy : uint8_t { kLru = 1, kLfu = 2 };

struct TableConfig {
  uint32_t width = 1;
  RowRule rule = RowRule::kElementwise;
  OptimizerConfig optimizer;
  double weight_decay = 0;   // applied to a row before each step in which it has a gradient
  double group_penalty = 0;  // kGroupFtrl: on a row's norm, times sqrt(width)
  std::array<double, kMaxSlots> first_slots{};  // initial values of slots
  RowInitializer initializer;
  uint32_t min_count = 1;  // an id gets a row when it is seen the min_count-th time
  double probability = 1;  // that an id gets a row when it is seen
  uint64_t max_rows = 0;   // beyond, each new row evicts another; 0: no limit
  EvictionPolicy policy = EvictionPolicy::kLru;
  double ttl_seconds = 0;  // rows that are unused for longer are evicted; 0: none
  double min_norm = 0;     // rows of a smaller Euclidean norm are evicted

  // In their order on the wire (protocol/message.h) and in files.
  template <typename Config, typename Visitor>
  static void Fields(Config& c, Visitor& visit) {
    visit(c.width);
    visit.Enum(c.rule, RowRule::kElementwise, RowRule::kLamb);
    visit(c.optimizer, c.weight_decay, c.group_penalty, c.first_slots);
    visit.Enum(c.initializer.kind, InitializerKind::kConstant, InitializerKind::kTruncatedNormal);
    visit(c.initializer.a, c.initializer.b, c.initializer.seed);
    visit(c.min_count, c.probability, c.max_rows);
    visit.Enum(c.policy, EvictionPolicy::kLru, EvictionPolicy::kLfu);
    visit(c.ttl_seconds, c.min_norm);
  }
};

// For error messages: the slots of a row and their sizes, such as "momentum (16)".
std::string SlotsText(const TableConfig& config);

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_TABLE_CONFIG_H_
