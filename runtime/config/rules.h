// Enforces what the schema says about single fields (FieldRule, proto/ananke/options.proto) in any message, plugins'
// configs included, and writes defaults out.
#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "runtime/config/problem.h"
#include "runtime/config/schema.h"

namespace ananke {

// Every broken rule in `message` and the messages inside it. Paths begin with `prefix`. A missing message is judged by
// `required` alone, not by the rules of its fields. Values that stand at their default are not looked at.
Problems check_rules(const google::protobuf::Message& message, const Schema& schema, const std::string& prefix = "");

// Writes every default that the schema states into the field, in the messages that are present, so that the message
// means the same to a later version with other defaults.
void write_defaults(const Schema& schema, google::protobuf::Message* message);

// "at least 1, at most 9": a rule in words, for help and errors; empty without limits.
std::string describe_rule(const google::protobuf::FieldDescriptor* field);

}  // namespace ananke
