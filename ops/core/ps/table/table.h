// An embedding table: rows of float32 by 64-bit id, created on first use, each followed by its
// optimizer's slots. Thread-safe.
//
// Ids are spread over stripes, each with its own lock. A snapshot has the rows of one moment,
// though it is copied bit by bit while the table is in use.
#ifndef TFDIST_OPS_CORE_PS_TABLE_TABLE_H_
#define TFDIST_OPS_CORE_PS_TABLE_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/memory_budget.h"
#include "core/base/status.h"
#include "core/ps/table/row_optimizer.h"
#include "core/ps/table/row_promises.h"
#include "core/ps/table/saved_rows.h"
#include "core/ps/table/stripe.h"
#include "core/ps/table/table_batch.h"
#include "core/ps/table/table_config.h"
#include "core/ps/table/table_edit.h"

namespace tfdist::ps {

class Table {
 public:
  // Check and Create fail if `config` is invalid; the message names the expected value.
  static Status Check(const TableConfig& config);
  static Status Create(const TableConfig& config, std::unique_ptr<Table>* out,
                       std::string name = "");

  const std::string& name() const { return name_; }
  const TableConfig& config() const { return config_; }
  // Of a row: its value, then its slots.
  size_t content_floats() const { return optimizer_.content_floats(); }

  // Charges the table's memory to a budget; before other threads use the table.
  void ChargeTo(std::shared_ptr<MemoryBudget> budget);
  // The memory that is charged.
  uint64_t counted_bytes() const;

  // The treatment of ids without rows: ignore them, create rows for admitted ids, or create all.
  enum class OnMissing { kIgnore, kAdmit, kCreate };
  // Sorts the ids of a request by stripes, and reserves the memory for the rows that it may create:
  // as long as the batch lives, they can be created. Throws OverBudget, if `within_budget` and the
  // rows do not fit, or std::bad_alloc; nothing has changed then.
  std::unique_ptr<TableBatch> Prepare(const int64_t* ids, size_t count, OnMissing on_missing,
                                      bool within_budget);
  // Whether a gradient of an id without a row creates the row.
  OnMissing on_missing_gradient() const;

  // Times are in seconds since any moment. They may decrease slightly, not by much.

  // Copies the values of `count` ids to `rows`, `width` floats each; for an id without a row, its
  // initial value. With `training`, ids count as seen, and get rows when they are admitted.
  void Lookup(double now, const int64_t* ids, size_t count, bool training, float* rows);
  void Lookup(double now, const TableBatch& batch, bool training, float* rows);
  // Makes one step with the gradients of ids, each of which occurs once. An id without a row gets
  // one, unless ids have to be admitted: then its index is appended to `lost`.
  void Apply(double now, const int64_t* ids, size_t count, const float* gradients,
             const StepValues& step, std::vector<size_t>* lost = nullptr);
  // `lost` has capacity for all ids.
  void Apply(double now, const TableBatch& batch, const float* gradients, const StepValues& step,
             std::vector<size_t>* lost);
  // Applies gradients that were applied before, from a log: each id gets a row.
  void Replay(double now, const int64_t* ids, size_t count, const float* gradients,
              const StepValues& step);
  // Evicts rows that are unused for too long or have too small a norm.
  void Sweep(double now);

  // The floats of each row that an edit of this kind brings.
  size_t EditFloats(EditKind kind) const { return EditFloats(kind, config_); }
  static size_t EditFloats(EditKind kind, const TableConfig& config);
  // Carries out an edit, for whose rows Prepare has reserved memory. Throws std::bad_alloc if other
  // requests have used it since; then a part of the edit is done.
  void Edit(const TableEdit& edit);
  // `found`: 1 for each id with a row, else 0. Unless `rows` is null, copies values as a Lookup
  // without training does; the rows do not count as used.
  void Find(const TableBatch& batch, uint8_t* found, float* rows);
  uint64_t row_count() const { return limit_.count(); }

  // Appends copies of about `max_rows` rows, which may change meanwhile. `cursor` is 0 at first,
  // and goes from call to call. Returns false if there were no more.
  bool ScanRows(size_t max_rows, uint64_t* cursor, SavedRows* rows);
  // Writes saved rows, and removes the removed ones; of `servers`, the rows that belong to
  // `server`. Evicts nothing: a row may be removed by a later part of a snapshot.
  void ImportRows(const SavedRowsView& rows, int server = 0, int servers = 1);
  // Removes the rows with another time of use, in ticks.
  void RetainRows(uint32_t used);
  // Fails if the lists do not fit together.
  Status ImportRows(const SavedRows& rows);
  // Evicts the rows beyond max_rows, which the snapshots of several servers may have.
  void EvictExcess();
  // Ids and values as saved rows: with the header and the slots of rows that are created now.
  SavedRows NewRows(double now, const int64_t* ids, size_t count, const float* values) const;

  // Begins a snapshot of all rows, or of the rows that changed since the previous one was begun. No
  // thread looks up or applies meanwhile. Throws std::bad_alloc.
  void BeginSnapshot(bool changed_only);
  // Appends about `max_rows` rows to `rows`; false if there were no more. Other threads may use the
  // table meanwhile. Throws std::bad_alloc if there is no memory, or was none to copy a row that
  // changed; the next snapshot has to be one of all rows then.
  bool NextSnapshotRows(size_t max_rows, SavedRows* rows);
  // Abandons the snapshot.
  void EndSnapshot();
  // The last step before the snapshot; a restored table continues from there.
  StepValues snapshot_step() const { return snapshot_step_; }
  void RestoreStep(const StepValues& step) { optimizer_.RestoreStep(step); }
  // The time of the last use of any row, in seconds of a clock that is at about `now`; `now` if
  // there are no rows.
  double LatestUse(double now) const;

  TableStats stats() const;

 private:
  Table(const TableConfig& config, std::string name);

  // Calls use(stripe, index in the request, id, hash) for all ids, under the locks of their
  // stripes.
  template <typename Use>
  void ForEach(const TableBatch& batch, size_t floats, const Use& use);
  void Apply(double now, const TableBatch& batch, const float* gradients, const StepValues& step,
             bool creates_all, std::vector<size_t>* lost);
  // How many rows a request may create, by stripe, if no id has a row.
  RowPromises::Counts MostNewRows(const TableBatch& batch) const;
  // Reserves memory for the rows of a stripe that are missing, at most `max_new`.
  void ReserveRows(size_t stripe, size_t max_new, OnMissing on_missing, bool within_budget,
                   TableBatch* batch);
  Stripe& StripeWith(uint64_t hash) { return *stripes_[StripeOf(hash, used_stripes_)]; }
  void WriteRow(const RowMap::Header& header, const float* content, bool keeps_limit);
  void WriteRows(const SavedRowsView& rows);
  void WriteValues(const TableEdit& edit);
  void RemoveRows(const int64_t* ids, size_t count);

  const std::string name_;
  const TableConfig config_;
  RowOptimizer optimizer_;
  RowLimit limit_;
  RowPromises promises_;
  const size_t used_stripes_;
  std::array<std::unique_ptr<Stripe>, kStripes> stripes_;
  StepValues snapshot_step_;
  std::shared_ptr<MemoryBudget> budget_;  // null: memory is not counted
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_TABLE_H_
