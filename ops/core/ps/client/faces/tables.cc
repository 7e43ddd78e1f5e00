#include "core/ps/client/faces/tables.h"

#include <memory>

#include "core/ps/client/operations/control_operations.h"

namespace tfdist::ps {

Tables::Tables(ClientState* state, std::function<void(double, std::function<void()>)> call_later)
    : state_(state),
      lookups_(&state->directory, &state->pool, state->submit, std::move(call_later),
               state->options.timeout_seconds),
      edits_(state->options.servers) {}

int Tables::Add(const std::string& name, const TableConfig& config, bool resets_slots) {
  return state_->directory.Add(name, config, resets_slots);
}

void Tables::Create(int table, Done done) {
  TableDirectory& directory = state_->directory;
  if (!directory.Has(table)) return done(InvalidArgument(StrCat("there is no table ", table)));
  // A request that a server cannot decode would break its connection.
  TableRequest read;
  const TableRequest request = directory.RequestFor(table);
  if (Status s = Decode(Encode(request), &read); !s.ok()) return done(s);
  state_->submit(std::make_shared<CreateTableOperation>(&directory, table, std::move(done)));
}

void Tables::Scan(int table, int server, uint64_t max_rows, bool slots, RowScan* scan, Done done) {
  if (!Has(table) || server < 0 || server >= state_->options.servers) {
    return done(InvalidArgument(StrCat("there is no table ", table, " on ps ", server)));
  }
  state_->submit(std::make_shared<ScanRowsOperation>(&state_->directory, table, server, max_rows,
                                                     slots, scan, std::move(done)));
}

void Tables::Edit(int table, const TableEdit& edit, uint64_t floats, Done done) {
  if (!Has(table)) return done(InvalidArgument(StrCat("there is no table ", table)));
  state_->submit(std::make_shared<EditRowsOperation>(
      &state_->directory, table, edit, floats, &edits_,
      [this, table, done = std::move(done)](const Status& status) {
        // Also after a failure: some servers may have carried it out.
        lookups_.Forget(table);
        done(status);
      }));
}

void Tables::Find(int table, const std::vector<int64_t>& ids, const FoundRows& to, Done done) {
  if (!Has(table)) return done(InvalidArgument(StrCat("there is no table ", table)));
  state_->submit(
      std::make_shared<FindRowsOperation>(&state_->directory, table, ids, to, std::move(done)));
}

}  // namespace tfdist::ps
