// A worker's access to the embedding tables of the servers.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_FACES_TABLES_H_
#define TFDIST_OPS_CORE_PS_CLIENT_FACES_TABLES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/ps/client/faces/shared.h"
#include "core/ps/client/lookups/lookups.h"
#include "core/ps/client/operations/row_transfer.h"

namespace tfdist::ps {

class Tables {
 public:
  // `call_later` calls a function on the client's thread, after some seconds.
  Tables(ClientState* state, std::function<void(double, std::function<void()>)> call_later);

  // Adds an embedding's table. Returns its id, or the id of the existing table of this name.
  int Add(const std::string& name, const TableConfig& config, bool resets_slots = false);
  bool Has(int table) const { return state_->directory.Has(table); }
  int64_t width(int table) const { return state_->directory.config(table).width; }
  const std::string& name(int table) const { return state_->directory.name(table); }
  int Find(const std::string& name) const { return state_->directory.Find(name); }
  // Creates the table on all servers where it does not exist.
  void Create(int table, Done done);
  // Fetches rows. With `training` their ids count as seen, and get rows when they are admitted.
  void Lookup(std::vector<TableLookup> lookups, bool training, Done done) {
    lookups_.Lookup(std::move(lookups), training, std::move(done));
  }
  // Batched lookups, prefetches, and caches.
  Lookups& lookups() { return lookups_; }
  LookupStats lookup_stats() const { return lookups_.stats(); }
  // Fetches about `max_rows` rows of one server, from the position of `scan`, which has to exist
  // until `done`.
  void Scan(int table, int server, uint64_t max_rows, bool slots, RowScan* scan, Done done);
  // Changes rows outside of a step, with `floats` floats each. Copies from `edit`. When done, this
  // worker's cached and prefetched rows of the table are forgotten.
  void Edit(int table, const TableEdit& edit, uint64_t floats, Done done);
  // Finds out which ids have rows, and copies these; see FoundRows.
  void Find(int table, const std::vector<int64_t>& ids, const FoundRows& to, Done done);

 private:
  ClientState* const state_;
  Lookups lookups_;
  std::vector<uint64_t> edits_;  // by server, those sent; of the client's thread
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_FACES_TABLES_H_
