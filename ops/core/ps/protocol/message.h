// The frames between a worker and a parameter server (net/frame.h): their metas are below, their
// payloads are values, in the order that meta lists them, without gaps.
//
// The worker sends requests, each with an id as its key. The server answers each with an OK or an
// ERROR of the same key. Answers come in any order: a pull may have to wait.
//
//   - OPEN: identifies the worker's process; the answer has the worker's clock
//   - CREATE: shards by name; the answer gives each an id, or says that it does not exist. Entries
//     with a value create the shard if it does not exist.
//   - BIND: the optimizer of a shard, and the shards that are its slots
//   - PULL: the values of shards that changed since the version that the worker has
//   - PUSH: the gradients and deltas of one step
//   - SET: new values, outside of a step
//   - EXCHANGE: shards and the worker's values for them attract each other (elastic averaging); the
//     answer has the differences by which the shards have moved
//   - REDUCE: tensors to add up over the workers; the answer has the sum
//   - TABLE: creates embedding tables by name; the answer gives each an id
//   - LOOKUP: rows of tables by id
//   - SCAN_ROWS: the next rows of a table, in any order
//   - EDIT_ROWS: writes or removes rows of a table
//   - FIND_ROWS: which ids have rows, and optionally their values; creates none. The answer also
//     has the number of rows.
//   - LEAVE: the worker has finished its program
//
// In an elastic job, see server/elastic_schedule.h:
//
//   - RESOLVE: the members of a new generation, and how many units of work they have done
//   - COMMIT: the worker has done the unit of work whose gradients it has pushed
#ifndef TFDIST_OPS_CORE_PS_PROTOCOL_MESSAGE_H_
#define TFDIST_OPS_CORE_PS_PROTOCOL_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/base/status.h"
#include "core/math/dtype.h"
#include "core/net/frame.h"
#include "core/net/message_stream.h"
#include "core/ps/optimizers/optimizer.h"
#include "core/ps/table/table_config.h"
#include "core/ps/table/table_edit.h"

namespace tfdist::ps {

enum class MessageType : uint8_t {
  kOpen = kFirstPsType,
  kCreate,
  kBind,
  kPull,
  kPush,
  kSet,
  kReduce,
  kLeave,
  kTable,
  kLookup,
  kScanRows,
  kEditRows,
  kFindRows,
  kResolve,
  kCommit,
  kExchange,
  kOk = 64,
  kError,
};

// "pull", "push"
const char* Name(MessageType type);

inline constexpr size_t kMaxMetaBytes = 64 << 20;
inline constexpr uint64_t kMaxPayloadBytes = uint64_t{1} << 36;  // 64 GB
inline constexpr size_t kMaxNameBytes = 1024;                    // of a shard
inline constexpr uint32_t kNoShard = 0xffffffff;

// Every message lists its fields once (core/base/fields.h).
// kName is the message's name in errors.

struct OpenRequest {
  static constexpr char kName[] = "OPEN request";
  uint64_t process = 0;  // random, one per process
  uint64_t pushes = 0;   // of this process so far

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.process, m.pushes);
  }
};
struct OpenReply {
  static constexpr char kName[] = "OPEN answer";
  uint64_t incarnation = 0;  // random, one per server process
  uint64_t clock = 0;

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.incarnation, m.clock);
  }
};

struct CreateRequest {
  static constexpr char kName[] = "CREATE request";
  struct Entry {
    std::string name;
    DType dtype = DType::kFloat32;
    uint64_t elements = 0;
    bool has_value = false;  // in the payload

    template <typename Message, typename Visitor>
    static void Fields(Message& m, Visitor& visit) {
      visit(m.name);
      visit.Enum(m.dtype, DType::kFloat16, DType::kBytes);
      visit(m.elements, m.has_value);
    }
  };
  std::vector<Entry> entries;

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.entries);
  }
};
struct CreateReply {
  static constexpr char kName[] = "CREATE answer";
  std::vector<uint32_t> shards;  // ids; kNoShard: does not exist

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.shards);
  }
};

struct BindRequest {
  static constexpr char kName[] = "BIND request";
  struct Entry {
    uint32_t shard = kNoShard;
    std::vector<uint32_t> slots;
    double weight_decay = 0;

    template <typename Message, typename Visitor>
    static void Fields(Message& m, Visitor& visit) {
      visit(m.shard, m.weight_decay, m.slots);
    }
  };
  OptimizerConfig config;
  std::vector<Entry> entries;

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.config, m.entries);
  }
};

struct PullRequest {
  static constexpr char kName[] = "PULL request";
  struct Entry {
    uint32_t shard = kNoShard;
    uint64_t version = 0;  // that the worker has; 0: none

    template <typename Message, typename Visitor>
    static void Fields(Message& m, Visitor& visit) {
      visit(m.shard, m.version);
    }
  };
  bool begins_step = false;  // waits for the schedule
  std::vector<Entry> entries;

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.begins_step, m.entries);
  }
};
struct PullReply {
  static constexpr char kName[] = "PULL answer";
  uint64_t clock = 0;
  std::vector<uint64_t> versions;  // an entry's value is in the payload if its version has changed

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.clock, m.versions);
  }
};

enum class UpdateKind : uint8_t {
  kGradient = 1,
  kRows = 2,       // a gradient of some rows: int64 row indices (they may repeat), then the rows
  kDelta = 3,      // added to the value
  kAssign = 4,     // replaces the value
  kTableRows = 5,  // a gradient of a table's rows: int64 ids, each once, then the rows
};
// Records of a data task that a push has trained: [from, upto).
struct TaskCommit {
  uint64_t lease = 0, from = 0, upto = 0;

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.lease, m.from, m.upto);
  }
};
// A unit of work of an elastic job.
struct UnitOfWork {
  uint64_t job = 0;         // random, one per founding of the job
  uint64_t generation = 0;  // of the members that do it: 1, 2, ...
  uint64_t number = 0;      // of units that were done before

  bool operator==(const UnitOfWork& other) const {
    return job == other.job && generation == other.generation && number == other.number;
  }

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.job, m.generation, m.number);
  }
};
struct PushRequest {
  static constexpr char kName[] = "PUSH request";
  struct Entry {
    uint32_t shard = kNoShard;  // kTableRows: the table
    UpdateKind kind = UpdateKind::kGradient;
    uint8_t step = 0;              // kGradient, kRows, kTableRows: index into `steps`
    uint64_t rows = 0;             // kRows, kTableRows
    uint64_t width = 0;            // kRows, kTableRows: elements of a row
    DType wire = DType::kFloat32;  // kTableRows: dtype of the rows in the payload

    bool has_rows() const { return kind == UpdateKind::kRows || kind == UpdateKind::kTableRows; }
    bool has_step() const { return has_rows() || kind == UpdateKind::kGradient; }

    template <typename Message, typename Visitor>
    static void Fields(Message& m, Visitor& visit) {
      visit(m.shard);
      visit.Enum(m.kind, UpdateKind::kGradient, UpdateKind::kTableRows);
      visit(m.step);
      if (m.has_rows()) visit(m.rows, m.width);
      if (m.kind == UpdateKind::kTableRows) {
        visit.Enum(m.wire, DType::kFloat16, DType::kFloat32);
      }
    }
  };
  uint64_t sequence = 0;     // counted from 1 by the worker's process, the same on all servers
  uint64_t clock = 0;        // of the pull that began the step
  uint64_t incarnation = 0;  // of the server that answered that pull
  std::vector<StepValues> steps;
  std::vector<Entry> entries;
  // The push trains records of data tasks: its changes must survive the server.
  bool of_tasks = false;
  std::vector<TaskCommit> commits;  // only to the server of the data tasks' master
  UnitOfWork unit;                  // in an elastic job

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.sequence, m.clock, m.incarnation, m.steps, m.entries, m.of_tasks, m.commits);
    visit(m.unit);
    for (const Entry& entry : m.entries) {
      visit.Check(entry.has_step() ? entry.step < m.steps.size() : entry.step == 0);
    }
  }
};
struct PushReply {
  static constexpr char kName[] = "PUSH answer";
  bool dropped = false;  // the push came too late, or from a former generation
  // The worker does not own a task any more whose records the push has trained; nothing of the push
  // was applied here.
  bool refused = false;

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.dropped, m.refused);
  }
};

struct SetRequest {
  static constexpr char kName[] = "SET request";
  std::vector<uint32_t> shards;

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.shards);
  }
};

// The payload: the worker's values x of the shards. Each shard's value c becomes c + alpha (x - c).
// The answer's payload: alpha (x - c).
struct ExchangeRequest {
  static constexpr char kName[] = "EXCHANGE request";
  uint64_t sequence = 0;  // counts the exchanges of the worker's process from 1
  double alpha = 0;       // above 0, at most 1
  std::vector<uint32_t> shards;

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.sequence, m.alpha, m.shards);
  }
};

struct ReduceRequest {
  static constexpr char kName[] = "REDUCE request";
  uint64_t key = 0;  // of the op, the same in all workers
  // Which execution of the op: counted by the worker's pushes and its position in the step.
  uint64_t sequence = 0;
  // Of the tensors; both lists have one length.
  std::vector<DType> dtypes;
  std::vector<uint64_t> elements;

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.key, m.sequence);
    visit.Zipped(m.dtypes, DType::kFloat16, DType::kBytes, m.elements);
  }
};

struct TableRequest {
  static constexpr char kName[] = "TABLE request";
  struct Entry {
    std::string name;
    TableConfig config;
    // A table that was restored with another configuration takes this one, and resets its slots.
    bool resets_slots = false;

    template <typename Message, typename Visitor>
    static void Fields(Message& m, Visitor& visit) {
      visit(m.name, m.config, m.resets_slots);
    }
  };
  std::vector<Entry> entries;

  // Snapshots and redo logs describe tables in this form: a change of it makes old files
  // unreadable.
  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.entries);
  }
};
struct TableReply {
  static constexpr char kName[] = "TABLE answer";
  std::vector<uint32_t> tables;

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.tables);
  }
};

// The answer's payload: the rows of all entries, one entry after the other.
struct LookupRequest {
  static constexpr char kName[] = "LOOKUP request";
  struct Entry {
    uint32_t table = 0;
    uint64_t count = 0;            // of ids, int64 in the payload
    DType wire = DType::kFloat32;  // of the rows in the answer, rounded to float16 or bfloat16

    template <typename Message, typename Visitor>
    static void Fields(Message& m, Visitor& visit) {
      visit(m.table, m.count);
      visit.Enum(m.wire, DType::kFloat16, DType::kFloat32);
    }
  };
  bool training = false;  // ids count as seen, and missing rows are created
  std::vector<Entry> entries;

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.training, m.entries);
  }
};

// The answer's payload: ids, times of use, counts, and the rows.
struct ScanRowsRequest {
  static constexpr char kName[] = "SCAN_ROWS request";
  uint32_t table = 0;
  uint64_t incarnation = 0;  // of the server that returned the cursor; 0 to begin
  uint64_t cursor = 0;
  uint64_t max_rows = 0;
  bool slots = false;  // with slots, not only values

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.table, m.incarnation, m.cursor, m.max_rows, m.slots);
  }
};
struct ScanRowsReply {
  static constexpr char kName[] = "SCAN_ROWS answer";
  uint64_t incarnation = 0;
  uint64_t cursor = 0;  // for the next request
  bool more = false;    // false: the scan is complete, and this answer has no rows
  uint64_t rows = 0;

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.incarnation, m.cursor, m.more, m.rows);
  }
};

// The payload: ids; for kRestore times of use and counts; and the rows, if the kind has any.
struct EditRowsRequest {
  static constexpr char kName[] = "EDIT_ROWS request";
  uint32_t table = 0;
  EditKind kind = EditKind::kRemove;
  uint64_t rows = 0;
  uint64_t floats = 0;    // of a row
  uint64_t sequence = 0;  // counts the edits of the worker's process on this server from 1

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.table);
    visit.Enum(m.kind, EditKind::kRestore, EditKind::kClear);
    visit(m.rows, m.floats, m.sequence);
  }
};

// The payload: ids. The answer's: one byte for each id, 1 if it has a row; then, with `values`, the
// rows. The row of an id without one has its initial value.
struct FindRowsRequest {
  static constexpr char kName[] = "FIND_ROWS request";
  uint32_t table = 0;
  uint64_t count = 0;
  bool values = false;

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.table, m.count, m.values);
  }
};
struct FindRowsReply {
  static constexpr char kName[] = "FIND_ROWS answer";
  uint64_t rows = 0;  // of the table on this server

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.rows);
  }
};

// All members of a generation send it before their first unit of work in that generation.
struct ResolveRequest {
  static constexpr char kName[] = "RESOLVE request";
  UnitOfWork next;                // all members have done the units before it
  std::vector<uint32_t> workers;  // the members' ranks on the servers, in any order

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.next, m.workers);
  }
};
struct ResolveReply {
  static constexpr char kName[] = "RESOLVE answer";
  bool refused = false;     // the server knows a later generation
  uint64_t generation = 0;  // that the server knows now

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.refused, m.generation);
  }
};

struct CommitRequest {
  static constexpr char kName[] = "COMMIT request";
  UnitOfWork unit;
  bool pushed = false;  // whether the worker has pushed gradients in the unit

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.unit, m.pushed);
  }
};
struct CommitReply {
  static constexpr char kName[] = "COMMIT answer";
  bool open = false;  // other members have not committed the unit yet
  bool lost = false;  // the server has lost the push: it was started again since

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit(m.open, m.lost);
  }
};

// The codes of StatusCode have gaps.
bool IsErrorCode(StatusCode code);
struct ErrorReply {
  static constexpr char kName[] = "ERROR answer";
  StatusCode code = StatusCode::kInternal;
  std::string message;

  template <typename Message, typename Visitor>
  static void Fields(Message& m, Visitor& visit) {
    visit.Enum(m.code, StatusCode::kCancelled, StatusCode::kUnavailable);
    visit.Check(IsErrorCode(m.code));
    visit(m.message);
  }
};

// The types above, and how large their frames may be.
bool LimitsOfMessages(uint8_t type, FrameLimits* limits);
// How both ends use a connection.
StreamOptions MessageStreamOptions();
inline FrameHeader HeaderOf(MessageType type, uint64_t id) {
  FrameHeader header;
  header.type = static_cast<uint8_t>(type);
  header.key = id;
  return header;
}

// `meta` of the messages above, and back. Decode fails if `meta` is anything but a whole message;
// `message` is then undefined.
template <typename Message, typename = std::void_t<decltype(Message::kName)>>
std::string Encode(const Message& message);
template <typename Message, typename = std::void_t<decltype(Message::kName)>>
Status Decode(std::string_view meta, Message* message);

// Whether all fields of both are equal, bit by bit.
bool SameFields(const TableConfig& a, const TableConfig& b);
bool SameFields(const OptimizerConfig& a, const OptimizerConfig& b);

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_PROTOCOL_MESSAGE_H_
