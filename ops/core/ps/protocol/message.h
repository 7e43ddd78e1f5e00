// The frames between a worker and a parameter server (net/frame.h): their metas are below, their
// payloads are values, in the order that meta lists them, without gaps.
//
// The worker sends requests, each with an id as its key. The server answers each with an OK or an
// ERROR of the same key. Answers come in any order: a pull may have to wait.
//
//   - OPEN: who the worker is; tells its clock
//   - CREATE: shards by name; the answer gives each a number, or says that it does not exist. With
//     values, those that do not exist are created.
//   - BIND: the optimizer of a shard, and the shards that are its slots
//   - PULL: the values of shards that changed since the version that the worker has
//   - PUSH: gradients and changes of one step
//   - SET: new values, from outside of a step
//   - REDUCE: tensors to add up over the workers; the answer carries the sum
//   - TABLE: embeddings' tables by name, which are created; the answer gives each a number
//   - LOOKUP: rows of tables by id
//   - DUMP: some rows of a table, whichever come next
//   - EDIT_ROWS: rows of a table to be put in place or removed
//   - FIND_ROWS: which ids have rows, and these, without making any; how many rows there are
//   - LEAVE: the worker has finished its program
#ifndef TFDIST_OPS_CORE_PS_PROTOCOL_MESSAGE_H_
#define TFDIST_OPS_CORE_PS_PROTOCOL_MESSAGE_H_

#include <cstdint>
#include <string>
#include <string_view>
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
  kDump,
  kEditRows,
  kFindRows,
  kOk = 64,
  kError,
};

inline constexpr size_t kMaxMetaBytes = 64 << 20;
inline constexpr uint64_t kMaxPayloadBytes = uint64_t{1} << 36;  // 64 GB
inline constexpr size_t kMaxNameBytes = 1024;                    // of a shard
inline constexpr uint32_t kNoShard = 0xffffffff;

struct OpenRequest {
  uint64_t process = 0;  // random, one per process
  uint64_t pushes = 0;   // made by this process so far
};
struct OpenReply {
  uint64_t incarnation = 0;  // random, one per server process
  uint64_t clock = 0;
};

struct CreateRequest {
  struct Entry {
    std::string name;
    DType dtype = DType::kFloat32;
    uint64_t elements = 0;
    bool has_value = false;  // in the payload
  };
  std::vector<Entry> entries;
};
struct CreateReply {
  std::vector<uint32_t> shards;  // kNoShard: does not exist
};

struct BindRequest {
  struct Entry {
    uint32_t shard = kNoShard;
    std::vector<uint32_t> slots;
    double weight_decay = 0;
  };
  OptimizerConfig config;
  std::vector<Entry> entries;
};

struct PullRequest {
  struct Entry {
    uint32_t shard = kNoShard;
    uint64_t version = 0;  // what the worker has; 0: nothing
  };
  bool begins_step = false;  // begins a step, and waits for the schedule
  std::vector<Entry> entries;
};
struct PullReply {
  uint64_t clock = 0;
  std::vector<uint64_t> versions;  // an entry's value is in the payload if its version has changed
};

enum class UpdateKind : uint8_t {
  kGradient = 1,
  kRows = 2,    // a gradient of some rows: int64 row numbers, then the rows; a row may come twice
  kDelta = 3,   // to be added
  kAssign = 4,  // to be put in place
  kTableRows = 5,  // a gradient of a table's rows: int64 ids, each once, then the rows
};
struct PushRequest {
  struct Entry {
    uint32_t shard = kNoShard;  // kTableRows: the table
    UpdateKind kind = UpdateKind::kGradient;
    uint8_t step = 0;              // kGradient, kRows, kTableRows: index into `steps`
    uint64_t rows = 0;             // kRows, kTableRows
    uint64_t width = 0;            // kRows, kTableRows: elements of a row
    DType wire = DType::kFloat32;  // kTableRows: what they travel as
  };
  uint64_t sequence = 0;     // counted from 1 by the worker's process, the same on all servers
  uint64_t clock = 0;        // of the pull that began the step
  uint64_t incarnation = 0;  // of the server that answered that pull
  std::vector<StepValues> steps;
  std::vector<Entry> entries;
};
struct PushReply {
  bool dropped = false;  // it came too late
};

struct SetRequest {
  std::vector<uint32_t> shards;
};

struct ReduceRequest {
  uint64_t key = 0;  // of the op, the same in all workers
  uint64_t sequence =
      0;  // which execution of it, counted by the worker's pushes and its place in the step
  std::vector<DType> dtypes;
  std::vector<uint64_t> elements;
};

struct TableRequest {
  struct Entry {
    std::string name;
    TableConfig config;
    // A table that was restored with another configuration takes this one; its slots are reset.
    bool resets_slots = false;
  };
  std::vector<Entry> entries;
};
struct TableReply {
  std::vector<uint32_t> tables;
};

// The answer's payload: the rows of all entries, one after the other.
struct LookupRequest {
  struct Entry {
    uint32_t table = 0;
    uint64_t count = 0;            // of ids, int64 in the payload
    DType wire = DType::kFloat32;  // what rows travel as; float16 and bfloat16 are rounded
  };
  bool training = false;  // ids count as seen, and get rows
  std::vector<Entry> entries;
};

// The answer's payload: ids, times of use, counts, and the rows.
struct DumpRequest {
  uint32_t table = 0;
  uint64_t incarnation = 0;  // of the server that the cursor is of; 0 to begin
  uint64_t cursor = 0;
  uint64_t most = 0;   // rows
  bool slots = false;  // of rows, not only their values
};
struct DumpReply {
  uint64_t incarnation = 0;
  uint64_t cursor = 0;  // to go on with
  bool more = false;    // whether this came with rows
  uint64_t rows = 0;
};

// The payload: ids; of kRestore times of use and counts; and the rows, if the kind has any.
struct EditRowsRequest {
  uint32_t table = 0;
  EditKind kind = EditKind::kRemove;
  uint64_t rows = 0;
  uint64_t floats = 0;    // of a row
  uint64_t sequence = 0;  // of the edits of the worker's process on this server, counted from 1
};

// The payload: ids. The answer's: a byte for each, 1 if it has a row, and the rows if asked for; of
// an id without one, what it would begin as.
struct FindRowsRequest {
  uint32_t table = 0;
  uint64_t count = 0;
  bool values = false;
};
struct FindRowsReply {
  uint64_t rows = 0;  // of the table on this server
};

struct ErrorReply {
  StatusCode code = StatusCode::kInternal;
  std::string message;
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

std::string Encode(const OpenRequest& request);
std::string Encode(const OpenReply& reply);
std::string Encode(const CreateRequest& request);
std::string Encode(const CreateReply& reply);
std::string Encode(const BindRequest& request);
std::string Encode(const PullRequest& request);
std::string Encode(const PullReply& reply);
std::string Encode(const PushRequest& request);
std::string Encode(const PushReply& reply);
std::string Encode(const SetRequest& request);
std::string Encode(const ReduceRequest& request);
std::string Encode(const TableRequest& request);
std::string Encode(const TableReply& reply);
std::string Encode(const LookupRequest& request);
std::string Encode(const DumpRequest& request);
std::string Encode(const DumpReply& reply);
std::string Encode(const EditRowsRequest& request);
std::string Encode(const FindRowsRequest& request);
std::string Encode(const FindRowsReply& reply);
std::string Encode(const ErrorReply& reply);
Status Decode(std::string_view meta, OpenRequest* request);
Status Decode(std::string_view meta, OpenReply* reply);
Status Decode(std::string_view meta, CreateRequest* request);
Status Decode(std::string_view meta, CreateReply* reply);
Status Decode(std::string_view meta, BindRequest* request);
Status Decode(std::string_view meta, PullRequest* request);
Status Decode(std::string_view meta, PullReply* reply);
Status Decode(std::string_view meta, PushRequest* request);
Status Decode(std::string_view meta, PushReply* reply);
Status Decode(std::string_view meta, SetRequest* request);
Status Decode(std::string_view meta, ReduceRequest* request);
Status Decode(std::string_view meta, TableRequest* request);
Status Decode(std::string_view meta, TableReply* reply);
Status Decode(std::string_view meta, LookupRequest* request);
Status Decode(std::string_view meta, DumpRequest* request);
Status Decode(std::string_view meta, DumpReply* reply);
Status Decode(std::string_view meta, EditRowsRequest* request);
Status Decode(std::string_view meta, FindRowsRequest* request);
Status Decode(std::string_view meta, FindRowsReply* reply);
Status Decode(std::string_view meta, ErrorReply* reply);

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_PROTOCOL_MESSAGE_H_
