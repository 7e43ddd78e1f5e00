// A server that is started again reads its redo log and the values beside it.
//
// Input: a byte that says whether the rest is the file itself, or records and values from which a
// file with right checksums is made: a crafted file has these, too. A record that could be read is
// not logged again: the server has to take a snapshot of it, and all rows of the snapshot can be
// read.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "core/base/checksum.h"
#include "core/ps/server/handlers/request_handler.h"
#include "core/ps/store/redo_log.h"
#include "core/ps/store/update.h"
#include "fuzz.h"
#include "scratch.h"
#include "testing.h"

namespace tfdist::fuzz::row_log {
namespace {

using namespace ps;

constexpr char kMagic[] = "tfdist row log 2";

class NoReplies final : public ReplyChannel {
  void Deliver(uint64_t, Answer) override {}
  void Disconnect(uint64_t) override {}
  void WakeTimer() override {}
};

// The file, and the file of values beside it.
struct Files {
  ~Files() { std::remove((log.path + ".values").c_str()); }
  void WriteValues(const std::string& bytes) const {
    std::ofstream(log.path + ".values", std::ios::binary | std::ios::trunc) << bytes;
  }
  testing::Scratch log;
};

uint64_t ChecksumOf(const std::string& bytes) {
  Checksum sum;
  sum.Add(bytes.data(), bytes.size());
  return sum.value();
}

std::string Record(uint32_t kind, const std::string& meta, const std::string& arrays,
                   bool damaged) {
  const std::string head = Writer()
                               .Put(kind)
                               .Put(static_cast<uint32_t>(meta.size()))
                               .Put(uint64_t{arrays.size()})
                               .Take();
  Checksum sum;
  sum.Add(head.data(), head.size());
  sum.Add(meta.data(), meta.size());
  sum.Add(arrays.data(), arrays.size());
  return head + Writer().Put(sum.value() + (damaged ? 1 : 0)).Take() + meta + arrays;
}

std::string Ids(Input* input, uint64_t count) {
  std::string bytes;
  for (uint64_t i = 0; i < std::min<uint64_t>(count, 64); ++i) {
    const uint64_t id = input->Number();
    bytes.append(reinterpret_cast<const char*>(&id), sizeof(id));
  }
  return bytes;
}

std::string TableMeta(Input* input) {
  TableConfig config;
  config.width = input->Below(8) == 0 ? static_cast<uint32_t>(input->Number()) : 4;
  config.rule = static_cast<RowRule>(1 + input->Below(6));
  config.optimizer.kind = static_cast<OptimizerKind>(1 + input->Below(9));
  config.initializer = {static_cast<InitializerKind>(1 + input->Below(3)), input->Real(),
                        input->Real(), 1};
  if (input->Below(4) == 0) config.max_rows = input->Number();
  if (input->Below(4) == 0) config.min_count = input->Below(3);
  if (input->Below(4) == 0) config.first_slots[0] = input->Real();
  return Encode(TableRequest{{{StrCat("table", input->Below(2)), config, input->Bit()}}});
}

// Notes the bytes that the shard seems to have.
std::string ShardMeta(Input* input, std::vector<uint64_t>* shards) {
  const auto dtype = static_cast<DType>(1 + input->Below(7));
  const std::string name = StrCat("shard", input->Below(2));
  const uint64_t elements = input->Number();
  shards->push_back(elements * ByteSize(dtype));
  return Writer().PutString(name).Put(dtype).Put(elements).Take();
}

std::string PushRecord(Input* input, const std::string& values, const std::vector<uint64_t>& shards,
                       bool of_tasks, bool damaged) {
  Writer meta;
  std::string arrays;
  meta.Put(input->Below(3)).Put(uint64_t{input->Below(2)}).Put(input->Number());
  const uint32_t entries = input->Below(3);
  meta.Put(entries);
  for (uint32_t i = 0; i < entries; ++i) {
    const uint64_t count = input->Number();
    meta.Put(input->Below(3)).Put(input->Real()).Put(input->Real());
    meta.Put(static_cast<int64_t>(input->Number())).Put(count);
    arrays += Ids(input, count);
    arrays += std::string(16 * std::min<uint64_t>(count, 64), '\x3f');
  }
  if (of_tasks) {
    const uint32_t positions = input->Below(3);
    meta.Put(positions);
    for (uint32_t i = 0; i < positions; ++i) {
      meta.PutString(input->Text(12)).Put(input->Number());
    }
    const uint32_t changes = input->Below(4);
    meta.Put(changes);
    for (uint32_t i = 0; i < changes; ++i) {
      const bool whole = input->Bit();
      const uint32_t shard = input->Below(3);
      meta.Put(shard).Put(whole);
      if (whole) {
        const uint64_t offset = input->Number(), bytes = shard < shards.size() ? shards[shard] : 0;
        const bool there = offset <= values.size() && bytes <= values.size() - offset;
        meta.Put(offset).Put(there ? ChecksumOf(values.substr(offset, bytes)) : input->Number());
      } else {
        const uint64_t width = input->Number(), count = input->Number();
        meta.Put(width).Put(count);
        arrays += Ids(input, count);
        if (width < 64 && count < 64) arrays += std::string(width * count * 4, '\x3f');
      }
    }
  }
  return Record(of_tasks ? 4 : 2, meta.Take(), arrays, damaged);
}

std::string EditRecord(Input* input, bool damaged) {
  const auto kind = static_cast<uint8_t>(1 + input->Below(5));
  const uint64_t count = input->Number();
  const std::string meta = Writer()
                               .Put(input->Below(3))
                               .Put(uint64_t{input->Below(2)})
                               .Put(input->Number())
                               .Put(input->Below(3))
                               .Put(kind)
                               .Put(input->Real())
                               .Put(count)
                               .Take();
  return Record(3, meta, Ids(input, count) + std::string(4 * input->Below(300), '\x3f'), damaged);
}

// A file of records, most of which have right checksums.
std::string Records(Input* input, const std::string& values) {
  std::string file = kMagic;
  std::vector<uint64_t> shards;
  while (!input->empty()) {
    const uint32_t what = input->Below(16);
    const bool damaged = input->Below(64) == 0;
    if (what < 3) {
      file += Record(1, TableMeta(input), "", damaged);
    } else if (what < 6) {
      file += Record(5, ShardMeta(input, &shards), "", damaged);
    } else if (what < 9) {
      file += EditRecord(input, damaged);
    } else if (what < 15) {
      file += PushRecord(input, values, shards, what >= 11, damaged);
    } else {
      const std::string meta = input->Text(80);
      file += Record(input->Below(7), meta, input->Text(80), damaged);
    }
  }
  return file;
}

void Run(Input input) {
  const Files files;
  const bool made = input.Bit();
  if (made) {
    const std::string values(input.Below(1024), '\x3f');
    if (input.Bit()) files.WriteValues(values);
    files.log.Write(Records(&input, values));
  } else {
    files.log.Write(input.Rest());
  }
  ServerOptions options;
  options.schedule.workers = 2;
  options.memory_budget = 64 << 20;
  NoReplies replies;
  Store store(options, options.schedule.workers);
  RequestHandler handler(options, 1, &store, &replies);
  uint64_t records = 0, left_out = 0;
  try {
    const Status status = handler.recovery().ReplayLog(files.log.path, &records, &left_out);
    CHECK(status.ok() == status.message().empty());
  } catch (const std::bad_alloc&) {  // which server_c_api.cc catches, too
    return;
  }
  const ServerSnapshot snapshot = handler.recovery().TakeSnapshot(false, "");
  SavedRows rows;
  for (const auto& table : snapshot.tables) {
    while (table->NextSnapshotRows(16, &rows)) {
    }
  }
  CHECK(rows.ids.size() == rows.used.size());
  for (const SavedShard& shard : snapshot.shards) {
    CHECK(shard.block->bytes() == BytesOf(shard.dtype, shard.elements));
  }
}

// A log that a server writes, as file, and a made one.
std::vector<std::string> Seeds() {
  const Files files;
  RedoLog log([](const Status&) {});
  log.Begin(files.log.path);
  std::unique_ptr<Table> table;
  TableConfig config;
  config.width = 4;
  REQUIRE_OK(Table::Create(config, &table, "table0"));
  std::vector<int64_t> ids = {1, 2};
  std::vector<float> values(8, 1);
  TaskRecord tasks;
  tasks.positions = {{"task", 3}};
  ChangedShard shard;
  shard.shard = &tasks;
  shard.name = "shard0";
  shard.elements = 8;
  shard.value = std::make_shared<Block>(32);
  std::memcpy(shard.value->data(), values.data(), 32);
  tasks.shards = {shard};
  log.Append({0, 7, 1}, {ApplyTableRows(table.get(), {1, 1}, 2, ids.data(), values.data())},
             &tasks);
  tasks.shards[0].rows = {1};
  tasks.shards[0].width = 4;
  log.Append({0, 7, 2}, {}, &tasks);
  TableEdit edit;
  edit.kind = EditKind::kUpsert;
  edit.count = 2;
  edit.ids = ids.data();
  edit.content = values.data();
  log.Append({0, 7, 3}, table.get(), edit);
  std::vector<std::string> seeds = AnyBytes();
  for (std::string& seed : seeds) seed[0] = 1;
  seeds.push_back(std::string(1, '\0') + files.log.Read());
  // Records as the functions above read them: a shard of 8 float32, its value, two rows of it.
  seeds.push_back(
      std::string("\1\xff\0\1"
                  "\3\1\2\0\x8"
                  "\xb\1\0\0\1\0\0\1\1\0\0"
                  "\xb\1\0\0\2\0\0\1\0\0\4\2\0\1",
                  34));
  return seeds;
}

FUZZ_TARGET(Run, Seeds);

}  // namespace
}  // namespace tfdist::fuzz::row_log
