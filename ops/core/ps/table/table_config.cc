#include "core/ps/table/table_config.h"

#include <vector>

#include "core/base/status.h"

namespace tfdist::ps {
namespace {

// The names of `TableConfig.slots` in table_config.py.
std::vector<const char*> ElementwiseSlots(const OptimizerConfig& config) {
  switch (config.kind) {
    case OptimizerKind::kSgd:
      return config.momentum != 0 ? std::vector<const char*>{"change"} : std::vector<const char*>{};
    case OptimizerKind::kRmsprop: {
      std::vector<const char*> names = {"velocity"};
      if (config.momentum > 0) names.push_back("change");
      if (config.centered) names.push_back("mean");
      return names;
    }
    case OptimizerKind::kAdam:
      if (config.amsgrad) return {"momentum", "velocity", "largest velocity"};
      return {"momentum", "velocity"};
    case OptimizerKind::kAdagrad:
      return {"accumulator"};
    case OptimizerKind::kAdamax:
      return {"momentum", "norm"};
    case OptimizerKind::kFtrl:
      return {"accumulator", "linear"};
    case OptimizerKind::kLion:
      return {"momentum"};
    case OptimizerKind::kAdadelta:
      return {"squared gradient", "squared change"};
    case OptimizerKind::kNadam:
      return {"momentum", "velocity"};
  }
  return {};
}

std::vector<const char*> SlotNames(const TableConfig& config) {
  switch (config.rule) {
    case RowRule::kElementwise:
      return ElementwiseSlots(config.optimizer);
    case RowRule::kRowwiseAdagrad:
      return {"row accumulator"};
    case RowRule::kGroupFtrl:
      return {"accumulator", "linear"};
    case RowRule::kExactAdam:
      return {"momentum", "velocity", "step"};
    case RowRule::kAdafactor:
      return {"velocity"};
    case RowRule::kLamb:
      return {"momentum", "velocity"};
  }
  return {};
}

}  // namespace

std::string SlotsText(const TableConfig& config) {
  std::string text;
  for (const char* const name : SlotNames(config)) {
    const bool is_number = std::string(name) == "row accumulator" || std::string(name) == "step";
    text += StrCat(text.empty() ? "" : ", ", name, " (", is_number ? 1 : config.width, ")");
  }
  return text.empty() ? "(none)" : text;
}

}  // namespace tfdist::ps
