// A reader of JSON, as far as the description of a node needs it.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace vgpu {

struct Json {
    enum class Kind { NOTHING, NUMBER, TEXT, LIST, RECORD };
    Kind kind = Kind::NOTHING;
    double value = 0;  // true is 1, false is 0
    std::string text;
    std::vector<Json> items;
    std::map<std::string, Json> fields;

    const Json &operator[](const std::string &name) const;  // NOTHING where there is no such field
    double number(const std::string &name, double otherwise) const;
    std::string string(const std::string &name, const std::string &otherwise) const;
};

Json parse_json(const std::string &text);  // throws std::runtime_error
std::string quoted(const std::string &text);

}  // namespace vgpu
