"""The tool by which a supervisor asks its sub-agent."""

from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool


def billing_tool(biller: Any, config: RunnableConfig | None = None) -> StructuredTool:
    """`ask_billing(what)`, which has an agent answer, under a config of its own if it is given one; waits or is awaited."""

    def ask(what: str) -> str:
        """Ask billing."""
        return str(biller.invoke({"messages": what}, config)["messages"][-1].text)

    async def aask(what: str) -> str:
        return str((await biller.ainvoke({"messages": what}, config))["messages"][-1].text)

    return StructuredTool.from_function(ask, aask, name="ask_billing")
