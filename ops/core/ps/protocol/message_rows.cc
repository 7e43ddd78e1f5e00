// The messages about tables.
#include "core/ps/protocol/message.h"
#include "core/ps/protocol/message_fields.h"

namespace tfdist::ps {
namespace {

void PutConfig(Writer* writer, const TableConfig& c) {
  writer->Put(c.width).Put(c.rule);
  PutConfig(writer, c.optimizer);
  writer->Put(c.weight_decay).Put(c.group_penalty).Put(c.first_slots);
  writer->Put(c.initializer.kind).Put(c.initializer.a).Put(c.initializer.b);
  writer->Put(c.initializer.seed).Put(c.min_count).Put(c.probability);
  writer->Put(c.max_rows).Put(c.policy).Put(c.ttl_seconds).Put(c.min_norm);
}

void GetConfig(Reader* reader, TableConfig* c) {
  reader->Get(&c->width).GetEnum(&c->rule, RowRule::kElementwise, RowRule::kLamb);
  GetConfig(reader, &c->optimizer);
  reader->Get(&c->weight_decay).Get(&c->group_penalty).Get(&c->first_slots);
  reader->GetEnum(&c->initializer.kind, InitializerKind::kConstant,
                  InitializerKind::kTruncatedNormal);
  reader->Get(&c->initializer.a).Get(&c->initializer.b);
  reader->Get(&c->initializer.seed).Get(&c->min_count).Get(&c->probability);
  reader->Get(&c->max_rows).GetEnum(&c->policy, EvictionPolicy::kLru, EvictionPolicy::kLfu);
  reader->Get(&c->ttl_seconds).Get(&c->min_norm);
}

}  // namespace

std::string Encode(const TableRequest& request) {
  Writer writer;
  writer.Put(Count(request.entries));
  for (const TableRequest::Entry& entry : request.entries) {
    writer.PutString(entry.name);
    PutConfig(&writer, entry.config);
    writer.Put(entry.resets_slots);
  }
  return writer.Take();
}

Status Decode(std::string_view meta, TableRequest* request) {
  Reader reader(meta);
  request->entries.resize(reader.GetCount(sizeof(uint16_t)));
  for (TableRequest::Entry& entry : request->entries) {
    reader.GetString(&entry.name);
    GetConfig(&reader, &entry.config);
    reader.GetBool(&entry.resets_slots);
  }
  return reader.Finish("TABLE request");
}

std::string Encode(const TableReply& reply) {
  Writer writer;
  writer.Put(Count(reply.tables));
  for (const uint32_t table : reply.tables) writer.Put(table);
  return writer.Take();
}

Status Decode(std::string_view meta, TableReply* reply) {
  Reader reader(meta);
  reply->tables.resize(reader.GetCount(sizeof(uint32_t)));
  for (uint32_t& table : reply->tables) reader.Get(&table);
  return reader.Finish("TABLE answer");
}

std::string Encode(const LookupRequest& request) {
  Writer writer;
  writer.Put(request.training).Put(Count(request.entries));
  for (const LookupRequest::Entry& entry : request.entries) {
    writer.Put(entry.table).Put(entry.count).Put(entry.wire);
  }
  return writer.Take();
}

Status Decode(std::string_view meta, LookupRequest* request) {
  Reader reader(meta);
  reader.GetBool(&request->training);
  request->entries.resize(reader.GetCount(sizeof(uint32_t) + sizeof(uint64_t) + 1));
  for (LookupRequest::Entry& entry : request->entries) {
    GetWire(reader.Get(&entry.table).Get(&entry.count), &entry.wire);
  }
  return reader.Finish("LOOKUP request");
}

std::string Encode(const DumpRequest& request) {
  return Writer()
      .Put(request.table)
      .Put(request.incarnation)
      .Put(request.cursor)
      .Put(request.most)
      .Put(request.slots)
      .Take();
}

Status Decode(std::string_view meta, DumpRequest* request) {
  return Reader(meta)
      .Get(&request->table)
      .Get(&request->incarnation)
      .Get(&request->cursor)
      .Get(&request->most)
      .GetBool(&request->slots)
      .Finish("DUMP request");
}

std::string Encode(const DumpReply& reply) {
  return Writer().Put(reply.incarnation).Put(reply.cursor).Put(reply.more).Put(reply.rows).Take();
}

Status Decode(std::string_view meta, DumpReply* reply) {
  return Reader(meta)
      .Get(&reply->incarnation)
      .Get(&reply->cursor)
      .GetBool(&reply->more)
      .Get(&reply->rows)
      .Finish("DUMP answer");
}

std::string Encode(const EditRowsRequest& request) {
  return Writer()
      .Put(request.table)
      .Put(request.kind)
      .Put(request.rows)
      .Put(request.floats)
      .Put(request.sequence)
      .Take();
}

Status Decode(std::string_view meta, EditRowsRequest* request) {
  return Reader(meta)
      .Get(&request->table)
      .GetEnum(&request->kind, EditKind::kRestore, EditKind::kClear)
      .Get(&request->rows)
      .Get(&request->floats)
      .Get(&request->sequence)
      .Finish("EDIT_ROWS request");
}

std::string Encode(const FindRowsRequest& request) {
  return Writer().Put(request.table).Put(request.count).Put(request.values).Take();
}

Status Decode(std::string_view meta, FindRowsRequest* request) {
  return Reader(meta)
      .Get(&request->table)
      .Get(&request->count)
      .GetBool(&request->values)
      .Finish("FIND_ROWS request");
}

std::string Encode(const FindRowsReply& reply) { return Writer().Put(reply.rows).Take(); }

Status Decode(std::string_view meta, FindRowsReply* reply) {
  return Reader(meta).Get(&reply->rows).Finish("FIND_ROWS answer");
}

}  // namespace tfdist::ps
