// An embedding: rows of float32 by 64-bit id, made on first use, each with its optimizer's slots
// beside it. Any thread may call it.
//
// Ids are spread over stripes, each with its own lock. A saved copy is of one moment, though it is
// taken bit by bit: what is about to change before the copy has come to it is kept first.
#ifndef TFDIST_OPS_CORE_PS_TABLE_TABLE_H_
#define TFDIST_OPS_CORE_PS_TABLE_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/memory_budget.h"
#include "core/base/status.h"
#include "core/ps/table/table_config.h"
#include "core/ps/table/table_edit.h"

namespace tfdist::ps {

struct TableStats {
  uint64_t rows = 0, bytes = 0;
  uint64_t lookups = 0, hits = 0;  // ids looked up, and how many had a row
  uint64_t created = 0;
  uint64_t updates = 0, lost_updates = 0;  // rows' gradients applied, and without a row to go to
  uint64_t evicted_for_room = 0, evicted_by_age = 0, evicted_by_norm = 0;
};

// Rows as they are saved: `content` is each one's value and slots, one row after the other.
struct SavedRows {
  std::vector<int64_t> ids;
  std::vector<uint32_t> used, counts;
  std::vector<float> content;
  std::vector<int64_t> removed;  // since the save before
};

// The same in memory of the caller's.
struct SavedRowsView {
  size_t count = 0, removed_count = 0;
  const int64_t* ids = nullptr;
  const uint32_t *used = nullptr, *counts = nullptr;
  const float* content = nullptr;
  const int64_t* removed = nullptr;
};

class Table {
 public:
  // Fails if `config` asks for something impossible; the message says what was expected.
  static Status Create(const TableConfig& config, std::unique_ptr<Table>* out,
                       std::string name = "");
  ~Table();

  const std::string& name() const { return name_; }
  const TableConfig& config() const { return config_; }
  size_t content_floats() const { return content_floats_; }  // of a row: its value, then its slots

  // Counts its memory from now on, before others use it.
  void ChargeTo(std::shared_ptr<MemoryBudget> budget);
  // What is counted.
  uint64_t counted_bytes() const;

  // The ids of a request, in the order of stripes.
  class Batch;
  // Spare rows that are kept for a request.
  class Room;
  // What a request does with ids that have no rows.
  enum class Makes { kNone, kAdmitted, kAll };
  // Of `within_budget`, throws OverBudget if the rows that are to be made do not fit;
  // std::bad_alloc if there is no memory. Nothing has changed then; else, as long as the batch or
  // its room lives, they can be made.
  std::unique_ptr<Batch> Prepare(const int64_t* ids, size_t count, Makes makes, bool within_budget);
  // Whether a gradient of an id without a row makes one.
  Makes apply_makes() const;

  // Times are in seconds since any moment, and never fall by much.

  // The rows of `count` ids, `width` floats each; of an id without a row, what it would begin as.
  // If it is for `training`, ids are counted as seen, and get rows when they are admitted.
  void Lookup(double now, const int64_t* ids, size_t count, bool training, float* rows);
  void Lookup(double now, const Batch& batch, bool training, float* rows);
  // Makes one step with the gradients of ids, each of which occurs once. An id without a row gets
  // one, unless it would have to be admitted: then its place is appended to `lost`.
  void Apply(double now, const int64_t* ids, size_t count, const float* gradients,
             const StepValues& step, std::vector<size_t>* lost = nullptr);
  // `lost` has capacity for all ids.
  void Apply(double now, const Batch& batch, const float* gradients, const StepValues& step,
             std::vector<size_t>* lost);
  // The same of gradients that were applied before: each id gets a row.
  void Repeat(double now, const int64_t* ids, size_t count, const float* gradients,
              const StepValues& step);
  // Evicts what has been unused for too long or has too small a norm, in all stripes.
  void Sweep(double now);

  // How many floats of each row an edit brings.
  size_t EditFloats(EditKind kind) const;
  // Carries out an edit, for whose rows Prepare has made room. Throws std::bad_alloc if others have
  // taken it since; then some of the edit was done.
  void Edit(const TableEdit& edit);
  // Copies the rows of ids, as Lookup does if it is not for training; they do not count as used.
  // `found` says which have a row. Without `rows` nothing is copied.
  void Find(const Batch& batch, uint8_t* found, float* rows);
  // Any thread may call this.
  uint64_t row_count() const { return row_count_.load(std::memory_order_relaxed); }

  // Puts saved rows in their place, or removes them; of `servers`, those that belong to `server`.
  // Evicts nothing: the parts of a snapshot are the rows of one moment only when all are there.
  void Restore(const SavedRowsView& rows, int server = 0, int servers = 1);
  Status Restore(const SavedRows& rows);
  // Evicts rows that were restored beyond max_rows, as those of several servers may be.
  void EvictExcess();

  // Begins a copy of this moment: of all rows, or of those that have changed since the last copy
  // was begun. Nobody looks up or applies meanwhile.
  void BeginSave(bool changed_only);
  // Appends about `most` rows to `rows`; false if there were no more. Others go on meanwhile.
  // Throws std::bad_alloc if there is no memory, or was none to keep a row for the copy; then what
  // comes next is to be a copy of all rows.
  bool NextSave(size_t most, SavedRows* rows);
  // Gives the copy up.
  void EndSave();
  // The last step that the copy has seen; a restored table goes on from there.
  StepValues saved_step() const { return saved_step_; }
  void RestoreStep(const StepValues& step);
  // When a row was used last, in seconds of a clock that shows about `now`; that if there is none.
  double LatestUse(double now) const;

  // What rows of these ids and values would be if they were made now.
  SavedRows NewRows(double now, const int64_t* ids, size_t count, const float* values) const;

  // Appends copies of about `most` rows, which others may change meanwhile; `cursor` is 0 first,
  // and then what it became. Returns false if there are no more.
  bool Dump(size_t most, uint64_t* cursor, SavedRows* rows) const;

  TableStats stats() const;

 private:
  struct Stripe;

  Table(const TableConfig& config, std::string name);

  void Apply(double now, const Batch& batch, const float* gradients, const StepValues& step,
             bool makes_all, std::vector<size_t>* lost);
  void MakeRoom(size_t stripe, Makes makes, bool within_budget, Batch* batch);
  void Reserve(Stripe* stripe, size_t rows, bool within_budget);
  bool WouldAdmit(const Stripe& stripe, uint64_t hash) const;
  float* Content(Stripe* stripe, uint32_t row) const;
  uint32_t Make(Stripe* stripe, int64_t id, uint64_t hash);
  uint32_t Insert(Stripe* stripe, int64_t id, uint64_t hash);
  // While there are more rows than max_rows, evicts from this stripe what it has besides `spared`.
  void KeepBound(Stripe* stripe, uint32_t spared);
  // Takes one off the count of rows if it is above max_rows; the caller then evicts one.
  bool TakeExcess();
  void Upsert(const TableEdit& edit);
  void Put(const SavedRowsView& rows);
  void Clear();
  void FillSlots(float* slots) const;
  bool Admits(Stripe* stripe, uint64_t hash) const;
  void EvictOne(Stripe* stripe, uint32_t spared) const;
  // Of a part of a stripe, from a row on; false if it was the last.
  bool Sweep(uint32_t ticks, uint32_t from, Stripe* stripe);
  void Remove(Stripe* stripe, uint32_t row);
  void Erase(Stripe* stripe, uint32_t row) const;  // without counting it off
  void WillChange(Stripe* stripe, uint32_t row) const;
  void Keep(Stripe* stripe, uint32_t row, SavedRows* rows) const;
  void Step(float* content, const float* gradient, const StepValues& step) const;
  void CatchUp(Stripe* stripe, uint32_t row) const;

  const std::string name_;
  const TableConfig config_;
  const size_t slots_, content_floats_;
  std::vector<std::unique_ptr<Stripe>> stripes_;
  std::atomic<uint64_t> row_count_{0};  // of all stripes
  // Of the last step, for kExactAdam.
  std::atomic<int64_t> last_step_{0};
  std::atomic<double> learning_rate_{0};
  StepValues saved_step_;
  std::shared_ptr<MemoryBudget> budget_;  // null: memory is not counted
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_TABLE_H_
