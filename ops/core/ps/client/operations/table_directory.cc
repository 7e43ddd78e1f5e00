#include "core/ps/client/operations/table_directory.h"

namespace tfdist::ps {

int TableDirectory::Add(const std::string& name, const TableConfig& config, bool resets_slots) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i].name != name) continue;
    tables_[i].resets_slots = tables_[i].resets_slots || resets_slots;
    return static_cast<int>(i);
  }
  tables_.push_back({name, config, resets_slots, std::vector<uint32_t>(servers_, kNoShard)});
  return static_cast<int>(tables_.size()) - 1;
}

bool TableDirectory::Has(int table) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return table >= 0 && static_cast<size_t>(table) < tables_.size();
}

int TableDirectory::Find(const std::string& name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

const std::string& TableDirectory::name(int table) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return tables_[table].name;
}

const TableConfig& TableDirectory::config(int table) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return tables_[table].config;
}

TableRequest TableDirectory::RequestFor(int table) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Known& known = tables_[table];
  return {{{known.name, known.config, known.resets_slots}}};
}

TableRequest TableDirectory::RequestForAll(int server, std::vector<int>* tables) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  TableRequest request;
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i].ids[server] == kNoShard) continue;
    tables->push_back(static_cast<int>(i));
    request.entries.push_back({tables_[i].name, tables_[i].config, tables_[i].resets_slots});
  }
  return request;
}

void TableDirectory::SetTableId(int server, int table, uint32_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  tables_[table].ids[server] = id;
}

Status TableDirectory::FindTableId(int server, int table, uint32_t* id) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  *id = tables_[table].ids[server];
  if (*id != kNoShard) return Status();
  return Status(StatusCode::kFailedPrecondition,
                StrCat("table '", tables_[table].name, "' has not been created on ps ", server));
}

}  // namespace tfdist::ps
